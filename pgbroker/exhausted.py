"""The call that `on_exhausted` makes: what the database hands over, and whether a handler takes it."""

from pgbroker.errors import InvalidOption, UndecodableArgument
from pgbroker.payload import Signature, decode

# As the database writes it: the stored form of one `DeadLetter`.
A_DEATH = {
    "v": 1,
    "args": [
        {
            "job_id": "0199b0de-7a3c-7f11-9b7e-1f0a6c9d2e44",
            "job_type": "shop.charge",
            "queue": "default",
            "attempts": 5,
            "error_code": "shop.jobs.ProviderDown",
            "error": "down",
            "died_at": "2026-11-29T12:00:00.000001+00:00",
        }
    ],
    "kwargs": {},
}


def refuse_unless_it_takes_a_death(signature: Signature) -> None:
    """Refuse a handler that could not be called for a dead letter; raises `InvalidOption`."""
    try:
        decode(signature, A_DEATH)
    except UndecodableArgument as error:
        # Its cure is for a caller, who would give another value; here the handler must change.
        trouble = f"argument {error.details['path']} of {signature.name} {error.details['trouble']}"
        raise InvalidOption(
            "on_exhausted",
            f"cannot be called with a dead letter: {trouble}",
            f"Give {signature.name} one parameter, a pgbroker.DeadLetter.",
        ) from error
