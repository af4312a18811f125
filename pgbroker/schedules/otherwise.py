"""Tell whoever saves a schedule that others would read its expression otherwise."""

from datetime import date

from pgbroker.errors import PgBrokerError
from pgbroker.schedules.definition import Definition


def read_otherwise(definition: Definition, since: date) -> str | None:
    """
    Tell in a sentence where croniter reads the expression otherwise, from that day on; None where it does not.

    Only for whoever saves, shows or checks: nothing that fires may wait for that library to be loaded.
    """
    try:
        expression = definition.cron.expression
    except PgBrokerError:
        return None
    # Here, so that no worker and no scheduler loads it.
    from pgbroker.policy.cron.second_reading import second_reading

    return second_reading(expression, since)
