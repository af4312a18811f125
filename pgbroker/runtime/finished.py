"""When a worker ends by itself."""

import os
from typing import TYPE_CHECKING

from pgbroker import telemetry
from pgbroker.runtime.memory import resident_bytes

if TYPE_CHECKING:
    from pgbroker.runtime.supervisor import Worker


def is_finished(worker: "Worker") -> bool:
    """Tell whether a worker has done what it was started for, or cannot go on as it is; then it is to be recycled."""
    options, board = worker.options, worker.board
    if options.parent_pid is not None and os.getppid() != options.parent_pid:
        # The parent is gone, and nobody else would tell this process to stop.
        return True
    if options.max_rss is not None and (holds := resident_bytes()) > options.max_rss:
        telemetry.emit(
            "worker.too_large", worker_id=worker.id, rss_bytes=holds, max_rss_bytes=options.max_rss
        )
        worker.recycle()
        return True
    if board.stuck > board.slots:
        worker.recycle()
        return True
    if worker.jobs_left() == 0 and board.size == 0:
        return True
    return options.burst and worker.claimer.dry and board.size == 0
