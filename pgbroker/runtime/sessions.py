"""The connections of a worker's loops: whose turn it is to connect, and how long each waits for an answer."""

from pgbroker.conf import Settings
from pgbroker.db import Session
from pgbroker.runtime.connecting import ConnectGate
from pgbroker.runtime.upkeep import limits

LOOPS = ("claim", "settle", "heartbeat", "upkeep", "schedule", "listen")
# A shorter wait for an answer would take a busy server for a dead one.
MIN_PATIENCE_SECONDS = 2.0
# How long a settle waits for rows that somebody else has locked; then the others go first.
LOCK_TIMEOUT = "500ms"


def patience_of(purpose: str, settings: Settings) -> float:
    """
    Return how long a loop waits for an answer before it takes the connection for dead (seconds).

    Half a lease: a heartbeat that was late by as much still finds its leases. Who leads has a lease of its own.
    """
    lease = settings.LEADER_SECONDS if purpose in ("upkeep", "schedule") else settings.LEASE_SECONDS
    return max(MIN_PATIENCE_SECONDS, lease / 2)


class Sessions:
    """One session a loop, and one gate a server: whether the one answers says nothing of the other."""

    def __init__(self, alias: str, settings: Settings) -> None:
        self.settings = settings
        aliases = dict.fromkeys(LOOPS, alias) | {"listen": settings.LISTEN_DATABASE or alias}
        self.gates = {name: ConnectGate() for name in aliases.values()}
        self.by_loop = {
            loop: Session(
                name,
                purpose=loop,
                gate=self.gates[name].passing,
                patience=patience_of(loop, settings),
                **_limits_of(loop, settings),
            )
            for loop, name in aliases.items()
        }

    def __getitem__(self, loop: str) -> Session:
        return self.by_loop[loop]

    def last(self, alias: str) -> Session:
        """Make the one for the end, which waits for no gate."""
        return Session(alias, purpose="drain", patience=patience_of("drain", self.settings))

    def stop_waiting(self) -> None:
        """Let every loop try to connect at once, and once more: the process ends."""
        for gate in self.gates.values():
            gate.stop_waiting()


def _limits_of(loop: str, settings: Settings) -> dict[str, str]:
    match loop:
        case "upkeep" | "schedule":
            return limits(settings)
        case "settle":
            return {"lock_timeout": LOCK_TIMEOUT}
    return {}
