"""One update: from samples of the present weights to their next version.

Invariant: version k of the weights is what k updates have made, and is trained only with samples that it drew. A token
of another version ends the run (`WrongVersion`) before anything has changed (I6), and so does a gradient that is not
finite (`NotANumber`). Nothing is computed on nodes that were given back.
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from threading import Lock
from typing import Any

import torch

from rollmux.runtime.residency import NotFreed
from rollmux.trainer.device import AtHome, berth_of, copied, moments
from rollmux.trainer.errors import CheckpointRefused
from rollmux.trainer.masters import Masters
from rollmux.trainer.ranks.share import Shared
from rollmux.trainer.replicas import Replicated
from rollmux.trainer.sample import Sample
from rollmux.trainer.settings import Optimiser
from rollmux.trainer.update import NotANumber, Objective, Stats

log = logging.getLogger("rollmux")

# Replicas have this part of the time to leave nodes to finish what they compute; then they are ended.
REST_PART, LONGEST_REST_S = 0.3, 3.0


class Learner:
    """A model with its optimiser. Gradients are computed by `replicas` processes here, or `shared` with other nodes.

    If the device is not the processor, both are on it from `load` to `offload`, and in host memory otherwise.
    """

    def __init__(
        self,
        model: Any,
        objective: Objective,
        settings: Optimiser,
        version: int = 0,
        replicas: int = 1,
        shared: Shared | None = None,
        device: str = "cpu",
    ) -> None:
        self.model, self.version = model, version
        self.has_nodes = True  # without a controller all nodes are this job's
        self._is_leased = False
        self._rest_s = LONGEST_REST_S
        self._turn = Lock()
        self._settings = settings
        self._replicated = Replicated(model, objective, replicas)
        self._gradients = shared or self._replicated
        self._masters = Masters(model)
        self._optimiser = torch.optim.AdamW(
            self._masters.stepped,
            lr=settings.rate,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
        )
        self.berth = berth_of(device, "learner", lambda: [model, moments(self._optimiser), self._masters.tensors])

    # -- the state of the train phase: while it is on its nodes, they are this job's -----------------------------------

    def lease(self, drain_s: float) -> None:
        """From now on it has nodes only between `load` and `offload`, and `drain_s` to leave them."""
        self.has_nodes, self._is_leased = False, True
        self._rest_s = min(LONGEST_REST_S, REST_PART * drain_s)

    def load(self) -> None:
        """The nodes are this job's: from now on replicas may compute whenever there is work."""
        with self._turn:
            self.berth.load()
            self.has_nodes = True

    def offload(self) -> None:
        """Another job needs the nodes: once this returns nothing computes there. May be called in any thread."""
        with self._turn:
            self.has_nodes = False
            self._replicated.rest(self._rest_s)
            self.berth.offload()

    def begin_early(self) -> None:
        """A round begins: forgets early samples of a round that came to no update."""
        with self._turn:
            self._replicated.forget_early()
            if not self._is_leased:  # replicas take seconds to start, and could not leave the nodes meanwhile
                self._replicated.be_ready()

    def train_early(self, samples: Sequence[Sample]) -> None:
        """Takes all samples of one prompt of the next update: replicas begin with them, if there are replicas."""
        with self._turn:
            if self.has_nodes:
                self._replicated.early(self.version, samples)

    def go_on(self) -> None:
        """Gives replicas that are done with their samples the next ones."""
        with self._turn:
            if self.has_nodes:
                self._replicated.go_on(self.version)

    # ------------------------------------------------------------------------------------------------------------------

    def update(self, samples: Sequence[Sample]) -> Stats:
        """Makes an update of these samples, and returns its statistics."""
        with self._turn:
            stats = self._gradients.gradient(self.version, samples)
        self._masters.take_gradients()
        norm = torch.nn.utils.clip_grad_norm_(self._masters.stepped, self._settings.clip_norm)
        self._require_finite(stats, float(norm))
        self._optimiser.step()
        self._masters.write_back()
        self._optimiser.zero_grad()
        self.version += 1
        return stats

    def _require_finite(self, stats: Stats, norm: float) -> None:
        """Raises NotANumber before the optimiser's step, which would leave no weight that is a number."""
        wrong = [name for name, value in {**asdict(stats), "norm": norm}.items() if not isfinite(value)]
        if wrong:
            self._optimiser.zero_grad()
            remedy = "begin again with a lower optimiser.rate, or with smaller rewards"
            raise NotANumber(f"the gradient of step {self.version} is not finite ({', '.join(wrong)}): {remedy}")

    def close(self) -> None:
        """Ends the replicas, and leaves the device."""
        with self._turn:
            self._replicated.close()
            try:
                self.berth.close()
            except NotFreed as held:  # an error on its way holds it: show that one
                log.warning("%s", held)

    def state(self) -> dict[str, Any]:
        """Copies state that is on a device, as it may leave any time. State of several precisions that visits a device
        is copied at home, too: there it lies in one piece, of which torch saves only one precision.
        """
        with self.berth.still():
            state = {
                "model": self.model.state_dict(),
                "optimiser": self._optimiser.state_dict(),
                **self._masters.state(),
            }
            is_mixed = bool(self._masters.tensors) and not isinstance(self.berth, AtHome)
            found: dict[str, Any] = copied(state) if self.berth.is_here or is_mixed else state
        return {**found, "version": self.version}

    def restore(self, state: dict[str, Any]) -> None:
        """Writes the weights in place, in host memory, where there is room. Engines over them need to be told."""
        with self.berth.writing():
            was_here = self.berth.is_here
            self.berth.offload()
            self._require_shapes(state["model"])
            self.model.load_state_dict(state["model"])
            self._optimiser.load_state_dict(copied(state["optimiser"]))  # else it keeps all that was loaded
            self._masters.restore(state.get("masters", ()))
            if was_here:
                self.berth.load()
        self.version = state["version"]

    def _require_shapes(self, weights: dict[str, torch.Tensor]) -> None:
        """Refuses a checkpoint of another model: the model's folder may hold another one by now."""
        then, now = (
            {name: tuple(each.shape) for name, each in of.items()} for of in (weights, self.model.state_dict())
        )
        wrong = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
        if wrong:
            was, has = (of.get(wrong[0], "not there") for of in (then, now))
            told = f"{wrong[0]} was {was} and is {has}"
            raise CheckpointRefused(f"the checkpoint is of another model: {told}; restore it, or name another --out")
