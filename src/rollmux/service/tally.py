"""What happens, counted: events, what followed from them, and how long phases waited for their nodes.

Nothing here is of one job: however many there are, there are as many figures.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import get_args

from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.job import PhaseKind


class Tally:
    """Hears of every event that changed something. `waited` hears how long each phase has waited for its grant."""

    def __init__(self) -> None:
        # All there are from the start: Prometheus takes a counter that comes with its first count for one that stood.
        self.events = Counter({kind.__name__: 0 for kind in get_args(ev.Event)})
        self.commands = Counter({kind.__name__: 0 for kind in get_args(cmd.Command)})
        self.expired = 0  # leases whose holder was silent for too long
        self.waited: Callable[[PhaseKind, float], object] = _unheard
        self.waits: dict[str, dict[PhaseKind, float]] = {}  # since when, by job

    def note(self, now: float, event: ev.Event, commands: Sequence[cmd.Command]) -> None:
        self.events[type(event).__name__] += 1
        if isinstance(event, ev.JobFinished | ev.JobFailed | ev.JobStopped):
            self.waits.pop(event.job_id, None)
        elif isinstance(event, ev.PhaseRequested):
            self.waits.setdefault(event.job_id, {})[event.kind] = now
        for command in commands:
            self.commands[type(command).__name__] += 1
            if isinstance(command, cmd.Grant):
                self._granted(now, command.lease)
            elif isinstance(command, cmd.Revoke):
                self.expired += isinstance(event, ev.Tick)
            elif isinstance(command, cmd.Stop):  # its end may come with the time alone
                self.waits.pop(command.job_id, None)

    def _granted(self, now: float, lease: cmd.Lease) -> None:
        since = self.waits.get(lease.job_id, {}).pop(lease.kind, None)
        if since is not None:
            self.waited(lease.kind, now - since)


def _unheard(kind: PhaseKind, seconds: float) -> None:
    """Nobody looks at it."""
