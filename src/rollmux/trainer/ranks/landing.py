"""The weights of a job that spans nodes: whole on its training node, and whole on each of its rollout nodes."""

from typing import Any

import torch

from rollmux.runtime.sync import Exchange, Layout, Place, Plan, Side, Weights, make_plan
from rollmux.runtime.sync.tensors import as_torch, spec_of


def plan_for(model: Any, followers: int) -> Plan:
    """All processes come to the same one. Each byte crosses once to the rollout nodes, which pass it on."""
    tensors = tuple(spec_of(name, weight) for name, weight in weights_of(model).items())
    trains = Side(Layout(1), (Place("train", "train"),))
    draws = Side(Layout(1, dp=followers), tuple(Place("rollout", f"rollout {rank}") for rank in range(followers)))
    return make_plan(Exchange(tensors, trains, draws))


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters())


def put(weights: Weights, model: Any) -> None:
    """What has landed into the model, in place."""
    landed = as_torch(weights)
    with torch.no_grad():
        for name, weight in weights_of(model).items():
            weight.copy_(landed[name])
