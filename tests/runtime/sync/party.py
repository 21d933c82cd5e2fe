"""One sender or one receiver as a process of its own, which kills itself at a given step of its work.

A step is all that others could see half done: every frame in or out, every digest taken away or written, every mark
on the shelf, before it happens. `python -m tests.runtime.sync.party ROLE RANK FOLDER DIE_AT PLAN...`
"""

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollmux.runtime.sync import Receiver, Sender
from rollmux.runtime.sync.channel import Channel
from rollmux.runtime.sync.generation import Generation
from rollmux.runtime.sync.shelf import Shelf
from tests.runtime.sync.models import TOKEN, filling, small, whole

STEPS = (
    (Channel, ("send", "give", "header", "take")),
    (Generation, ("clear", "mark")),
    (Shelf, ("_write", "_forget")),
)
NEVER = 10**9


class Steps:
    """Counts steps from when it is told to, and dies at the one it was told."""

    def __init__(self, die_at: int) -> None:
        self.die_at, self.armed = die_at, False
        self._count = itertools.count(1)
        self.done = 0

    def watch(self) -> None:
        for owner, names in STEPS:
            for name in names:
                setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            if self.armed:
                self.done = next(self._count)
                if self.done >= self.die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
            return method(*args, **kwargs)

        return step


def send(steps: Steps, rank: int, folder: Path, shape: dict[str, Any]) -> None:
    """Publishes and syncs what each line says; the steps of both count."""
    plan = small(**shape)
    sender = Sender(plan, rank, folder, TOKEN, delta=True)
    for line in sys.stdin:
        order = json.loads(line)
        steps.armed = True
        model = whole(plan, order["version"], order["changed_by"])
        sender.publish(order["version"], filling(plan, plan.exchange.senders, rank, model))
        tally = sender.sync(order["epoch"], order["addresses"])
        print(json.dumps({"steps": steps.done, "kept": tally.kept, "plain": tally.plain}), flush=True)


def receive(steps: Steps, rank: int, folder: Path, shape: dict[str, Any]) -> None:
    """Serves; says its addresses first, and after each line how many steps there were."""
    receiver = Receiver(small(**shape), rank, folder, TOKEN, ["tcp://127.0.0.1:0"])
    print(json.dumps(receiver.addresses), flush=True)
    for _ in sys.stdin:
        print(json.dumps({"steps": steps.done}), flush=True)
        steps.armed = True


def main() -> None:
    role, rank, folder, die_at, shape = sys.argv[1:]
    steps = Steps(int(die_at))
    steps.watch()
    (send if role == "sender" else receive)(steps, int(rank), Path(folder), json.loads(shape))


if __name__ == "__main__":
    main()
