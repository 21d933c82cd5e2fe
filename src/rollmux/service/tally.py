"""What happens, counted: events, and what followed from them.

No figure is about one job, so there are no more figures with more jobs.
"""

from collections import Counter
from collections.abc import Sequence
from typing import get_args

from rollmux.mux import commands as cmd
from rollmux.mux import events as ev


class Tally:
    """Hears of every event that changed something."""

    def __init__(self) -> None:
        # All counters are there from the start: to Prometheus a counter that comes with its first count has not grown.
        self.events = Counter({kind.__name__: 0 for kind in get_args(ev.Event)})
        self.commands = Counter({kind.__name__: 0 for kind in get_args(cmd.Command)})
        self.expired = 0  # leases whose holder was silent for too long

    def note(self, event: ev.Event, commands: Sequence[cmd.Command]) -> None:
        self.events[type(event).__name__] += 1
        for command in commands:
            self.commands[type(command).__name__] += 1
            self.expired += isinstance(command, cmd.Revoke) and isinstance(event, ev.Tick)
