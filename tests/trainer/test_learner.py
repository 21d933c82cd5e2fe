"""A step is made of numbers or not at all; a model of two bytes a weight learns what one of four learns."""

import io
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from rollmux.trainer.device import moments
from rollmux.trainer.learner import Learner
from rollmux.trainer.settings import Optimiser
from rollmux.trainer.update import NotANumber, Objective
from tests.trainer.update.naive import Drawn, samples
from tests.trainer.update.naive import tiny as tiny_model

BATCH = samples([Drawn(group, float(place % 2), 3, 4) for group in range(3) for place in range(4)])
RATE = 1e-4  # below half of what two bytes can tell of most of these weights


def learner(dtype: torch.dtype = torch.bfloat16, rate: float = RATE) -> Learner:
    """The same weights in each precision."""
    return Learner(tiny_model(torch.bfloat16).to(dtype), Objective.reinforce(), Optimiser(rate=rate))


def weights(of: Learner) -> Tensor:
    return torch.cat([each.detach().double().flatten() for each in of.model.parameters()])


def updated(made: Learner, times: int) -> Learner:
    for _ in range(times):
        made.update([replace(each, versions=(made.version,) * len(each.tokens)) for each in BATCH])
    return made


def saved(made: Learner) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(made.state(), file)
    file.seek(0)
    found: dict[str, Any] = torch.load(file, weights_only=True)
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_told(dtype: torch.dtype) -> None:
    made = updated(learner(dtype), 1)
    with torch.no_grad():
        made.model.model.norm.weight.mul_(1e30)
    before = weights(made)
    with pytest.raises(NotANumber, match=r"step 1 is not finite \(.*norm.*lower optimiser\.rate"):
        updated(made, 1)
    assert made.version == 1
    assert torch.equal(weights(made), before)
    assert {each.grad for each in (*made.model.parameters(), *made._masters.stepped)} == {None}


def test_weights_of_two_bytes_move_as_those_of_four() -> None:
    narrow, wide = (learner(dtype) for dtype in (torch.bfloat16, torch.float32))
    before = weights(wide)
    assert torch.equal(weights(narrow), before)
    by, rightly_by = (weights(updated(each, 20)) - before for each in (narrow, wide))
    assert float(cosine_similarity(by, rightly_by, dim=0)) > 0.9
    assert float(by.norm()) == pytest.approx(float(rightly_by.norm()), rel=0.1)


def test_what_is_continued_comes_to_the_same_weights_in_both_precisions() -> None:
    whole = updated(learner(), 3)
    state, other = saved(whole), learner()
    other.restore(state)
    for each in (whole, other):
        updated(each, 3)
    assert torch.equal(weights(other), weights(whole))
    finer = [torch.cat([each.flatten() for each in saved(made)["masters"]]) for made in (whole, other)]
    assert torch.equal(*finer)
    assert torch.equal(finer[0].to(torch.bfloat16).double(), weights(whole))


def test_a_checkpoint_without_single_precision_goes_on_from_its_weights() -> None:
    state, made = saved(updated(learner(), 1)), updated(learner(), 2)
    del state["masters"]
    made.restore(state)
    assert "masters" not in made.state()
    others = torch.cat([each.double().flatten() for each in state["model"].values()])
    assert set(weights(made).tolist()) <= set(others.tolist())
    updated(made, 1)
    assert {each.dtype for each in moments(made._optimiser).values()} == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_that_is_precise_enough_keeps_nothing_beside_it(dtype: torch.dtype) -> None:
    made = updated(learner(dtype), 1)
    assert all(one is other for one, other in zip(made._masters.stepped, made.model.parameters(), strict=True))
    assert made.state().keys() == {"model", "optimiser", "version"}
