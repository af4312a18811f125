"""What people do to jobs while other things go wrong."""

from __future__ import annotations

import random
import threading

from django.db import Error, connections

from pgbroker import cancel, pause, redrive, resume, retry, tenant_context
from pgbroker.errors import PgBrokerError
from testproject.chaos.jobs import QUEUE
from testproject.chaos.scenarios import scenario
from testproject.chaos.stage import Stage

PAUSE_SECONDS = 0.3


@scenario(meddles=True)
def people_meddle(stage: Stage) -> None:
    """
    Three people cancel, retry, redrive, pause and resume, while a worker is killed and PostgreSQL crashes.

    However a job ends then: it ends, and so does each of its attempts, once.
    """
    over = threading.Event()
    people = [
        threading.Thread(target=_meddle, args=(stage, over, stage.dice.random()), daemon=True)
        for _ in range(3)
    ]
    for person in people:
        person.start()
    stage.wait(4)
    stage.kill()
    stage.wait(3)
    stage.server.restart("immediate")
    stage.wait(5)
    over.set()
    for person in people:
        person.join()
    resume(queue=QUEUE)


def _meddle(stage: Stage, over: threading.Event, seed: float) -> None:
    dice = random.Random(seed)
    while not over.wait(dice.random() * 0.05):
        job_id, item = dice.choice([*stage.load.accepted.items()][-400:])
        try:
            with tenant_context(item.tenant):
                match dice.choice(("cancel", "cancel", "retry", "retry", "redrive", "pause")):
                    case "cancel":
                        cancel(job_id)
                    case "retry":
                        retry(job_id)
                    case "redrive":
                        redrive(job_type=item.call.task.key)
                    case _:
                        pause(queue=QUEUE)
                        over.wait(PAUSE_SECONDS)
                        resume(queue=QUEUE)
        except PgBrokerError:
            # Refused, as it should be: it has not ended, or its key is somebody else's.
            pass
        except Error:
            connections.close_all()
    connections.close_all()
