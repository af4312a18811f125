"""How soon a parent starts a worker process again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pgbroker.policy.restarts import LONGEST_WAIT, RECYCLE, exit_code_of, is_hopeless, wait_before_restart

codes = st.integers(-64, 255)


@given(code=codes, ends=st.integers(0, 10**6))
def test_the_wait_is_bounded_and_grows_with_quick_ends_in_a_row(code, ends):
    wait = wait_before_restart(code, ends)

    assert 0 <= wait <= LONGEST_WAIT
    assert wait <= wait_before_restart(code, ends + 1)
    assert wait_before_restart(code, 10**6) == LONGEST_WAIT


@given(code=codes)
def test_what_ends_after_a_long_life_starts_again_at_once(code):
    assert wait_before_restart(code, 0) == 0


@given(code=codes)
def test_one_quick_end_is_waited_for_unless_the_process_asked_for_its_restart(code):
    assert (wait_before_restart(code, 1) == 0) == (code in (0, RECYCLE))
    assert wait_before_restart(code, 2) > 0


def test_no_restart_heals_a_wrong_flag_or_missing_migrations():
    assert [code for code in range(-20, 256) if is_hopeless(code)] == [2, 4]


@given(st.lists(codes, min_size=1))
def test_the_parent_is_clean_when_all_have_drained(ends):
    assert exit_code_of(ends) == (0 if set(ends) <= {0, RECYCLE} else 1)
