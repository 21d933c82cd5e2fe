"""What happens, counted: events, what followed from them, and how long phases waited for their nodes.

Nothing here is of one job: however many there are, there are as many figures.
"""

from collections import Counter
from collections.abc import Callable, Container, Sequence
from typing import get_args

from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.job import PhaseKind


class Tally:
    """Hears of every event that changed something."""

    def __init__(self, waited: Callable[[PhaseKind, float], object]) -> None:
        # All there are from the start: Prometheus takes a counter that comes with its first count for one that stood.
        self.events = Counter({kind.__name__: 0 for kind in get_args(ev.Event)})
        self.commands = Counter({kind.__name__: 0 for kind in get_args(cmd.Command)})
        self.expired = 0  # leases whose holder was silent for too long
        self._waited = waited
        self._since: dict[str, dict[PhaseKind, float]] = {}  # when each job asked for what it waits for

    def note(self, now: float, event: ev.Event, commands: Sequence[cmd.Command]) -> None:
        self.events[type(event).__name__] += 1
        if isinstance(event, ev.JobFinished | ev.JobFailed | ev.JobStopped):
            self._since.pop(event.job_id, None)
        elif isinstance(event, ev.PhaseRequested):
            self._since.setdefault(event.job_id, {})[event.kind] = now
        for command in commands:
            self.commands[type(command).__name__] += 1
            if isinstance(command, cmd.Grant):
                self._granted(now, command.lease)
            elif isinstance(command, cmd.Revoke):
                self.expired += isinstance(event, ev.Tick)

    def forget_others(self, jobs: Container[str]) -> None:
        """Of all but these jobs nothing more is to come."""
        self._since = {job_id: since for job_id, since in self._since.items() if job_id in jobs}

    def _granted(self, now: float, lease: cmd.Lease) -> None:
        since = self._since.get(lease.job_id, {}).pop(lease.kind, None)
        if since is not None:
            self._waited(lease.kind, now - since)
