"""The weights of a job that spans nodes: how they cross from the leader's node, and land whole on each other node."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rollmux.runtime.sync import Exchange, Layout, Place, Plan, Receiver, Side, Weights, make_plan
from rollmux.runtime.sync.tensors import as_torch, spec_of
from rollmux.trainer.errors import RanksApart


def plan_for(model: Any, engines: int, replicas: int = 0) -> Plan:
    """The plan of the crossing; all processes make the same one. Each byte crosses once to the rollout nodes, and once
    among training nodes; they pass it on.
    """
    tensors = tuple(spec_of(name, weight) for name, weight in weights_of(model).items())
    trains = Side(Layout(1), (Place("train", "train"),))
    draw = tuple(Place("rollout", f"rollout {number}") for number in range(engines))
    share = tuple(Place("train", f"train {number}") for number in range(1, replicas + 1))
    return make_plan(Exchange(tensors, trains, Side(Layout(1, dp=engines + replicas), (*draw, *share))))


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters())


@contextmanager
def landed(receiver: Receiver, version: int) -> Iterator[Weights]:
    """The landed weights, which must be of this version and stay while the context is open."""
    with receiver.read() as weights:
        if weights.version != version:
            raise RanksApart(f"version {weights.version} has landed here where version {version} was due")
        yield weights


def put(weights: Weights, model: Any) -> None:
    """Writes landed weights into the model, in place."""
    theirs = as_torch(weights)
    with torch.no_grad():
        for name, weight in weights_of(model).items():
            weight.copy_(theirs[name])
