"""explain: tell why a job does not run, and change nothing."""

from datetime import timedelta
from uuid import UUID

from pgbroker import db
from pgbroker.policy.job_facts import BOUND, NAMED_MAX, Facts
from pgbroker.policy.why_not_running import Explanation, explanation_of


def explain(job_id: UUID, *, ageing: timedelta, using: str | db.Session = "default") -> Explanation | None:
    """
    Tell the one reason why a job of the current tenant does not run; None when it has none of that id.

    *ageing* is what one step of priority is worth where the job's queue does not say. What other tenants have is
    neither named nor counted.
    """
    asked = {"job_id": job_id, "ageing": ageing, "limit": NAMED_MAX, "bound": BOUND}
    found = db.fetch("explain_job", asked, Facts._make, using=using)
    return explanation_of(found[0]) if found else None
