"""slime's train.py under leases: between its phases other jobs may use the GPUs of a colocated job.

The lease of a rollout begins where slime makes its engines, or moves their weights back. The update of these weights
and all evaluation with them is under it, and it ends once slime has moved the engines off. The rest of a step is under
the lease of the training.
"""

from contextlib import ExitStack
from types import ModuleType, TracebackType
from typing import Any

import rollmux
from rollmux.client import Mux

# The calls that slime's loop makes to its rollout manager and its trainers, and the phase whose lease each needs.
PHASES = {
    "onload_weights": "rollout",
    "eval": "rollout",
    "generate": "rollout",
    "create": "train",
    "async_train": "train",
}


class Turns:
    """One lease at a time: the next is asked for once the nodes of the last one were given back."""

    def __init__(self, mux: Mux) -> None:
        self._mux, self._held, self._kind = mux, ExitStack(), ""

    def take(self, kind: str) -> None:
        if kind != self._kind:
            self._kind = ""
            self._held.close()
            self._held.enter_context(self._mux.phase(kind))
            self._kind = kind

    def __enter__(self) -> "Turns":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held.__exit__(kind, error, traceback)


class Watched:
    """One of slime's objects, which takes the lease that a call to it needs."""

    def __init__(self, it: Any, turns: Turns) -> None:
        self.it, self._turns = it, turns

    def __getattr__(self, name: str) -> Any:
        if name in PHASES:
            self._turns.take(PHASES[name])
        return getattr(self.it, name)


def watch(loop: ModuleType, turns: Turns) -> None:
    """Replaces the functions by which `loop`, slime's train.py, makes its manager and its trainers."""
    make_manager, make_trainers = loop.create_rollout_manager, loop.create_training_models

    def manager(*given: Any, **more: Any) -> tuple[Any, ...]:
        turns.take("rollout")
        made, *others = make_manager(*given, **more)
        return Watched(made, turns), *others

    def trainers(args: Any, groups: Any, manager: Watched, **more: Any) -> tuple[Any, ...]:
        made = make_trainers(args, groups, manager.it, **more)
        return tuple(each and Watched(each, turns) for each in made)

    vars(loop).update(create_rollout_manager=manager, create_training_models=trainers)


def require_same_nodes(mux: Mux) -> None:
    if mux.rollout_nodes != mux.train_nodes:
        raise ValueError(
            f"this job rolls out on {mux.rollout_nodes} and trains on {mux.train_nodes}, and slime's update of weights "
            "needs the GPUs of both: give the cluster one `shared` pool, and the job as many nodes for each phase"
        )


if __name__ == "__main__":
    import train  # slime's own: run this in its folder, with its arguments

    arguments = train.parse_args()
    if not (arguments.colocate and arguments.offload_rollout and arguments.offload_train):
        raise ValueError(
            "the GPUs can be others' only where slime leaves them: give --colocate, and neither --no-offload"
        )
    with rollmux.connect() as connected, Turns(connected) as leases:
        require_same_nodes(connected)
        watch(train, leases)
        train.train(arguments)
