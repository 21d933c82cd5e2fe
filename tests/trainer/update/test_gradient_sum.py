"""What is trained when, what is refused, and that other weightings are wrong."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GraniteConfig, GraniteForCausalLM

from rollmux.errors import IllegalEvent, InvalidSpec
from rollmux.packer.gradient_share import Count, Given, GradientShare
from rollmux.trainer.update import (
    Baseline,
    GradientSum,
    Loss,
    NotANumber,
    Objective,
    UntrainableModel,
    WholeBatch,
    WrongVersion,
)
from rollmux.trainer.update.sums import Accumulator
from tests.trainer.update.naive import (
    VERSION,
    Drawn,
    furthest,
    gradients,
    samples,
    streamed,
    synchronous,
    tiny,
)

DOUBLE = 1e-9
SIX = [Drawn(group, float(place + group == 0), 2, 1 + 2 * place) for group in (0, 1) for place in (0, 1, 2)]
WHITENED = Objective.reinforce(Baseline.NONE, whiten=True)
RATIO_WHITENED = Objective(baseline=Baseline.NONE, group_std=False, whiten=True)


def weighted(parts: list[list[Tensor]], weights: list[float]) -> list[Tensor]:
    return [
        sum((w * t for w, t in zip(weights, same, strict=True)), torch.zeros(())) for same in zip(*parts, strict=True)
    ]


@pytest.mark.parametrize("loss", [Loss.SAMPLE_MEAN, Loss.TOKEN_MEAN])
def test_the_weights_of_the_paper_and_the_halves_of_the_artifact_are_not_the_synchronous_gradient(loss: Loss) -> None:
    objective = Objective(baseline=Baseline.NONE, group_std=False, loss=loss)
    batch = samples([Drawn(0, 1.0, 2, 3), Drawn(1, -0.5, 1, 6), Drawn(1, 2.0, 1, 2), Drawn(2, 0.5, 3, 1)])
    chunks, wanted = [batch[:1], batch[1:]], synchronous(objective, batch)
    means = [synchronous(objective, chunk) for chunk in chunks]
    units = [len(c) if loss is Loss.SAMPLE_MEAN else sum(len(s.tokens) for s in c) for c in chunks]
    sums = [[count * tensor for tensor in mean] for mean, count in zip(means, units, strict=True)]
    parts = [count / sum(units) for count in units]
    assert furthest(streamed(objective, batch), wanted) < DOUBLE
    assert furthest(weighted(means, parts), wanted) < DOUBLE
    assert furthest(weighted(sums, parts), wanted) > 0.2  # sum * n_i / N, as worded
    assert furthest(weighted(means, [part / 2 for part in parts]), wanted) > 0.4  # averaged over 2 ranks once more


def test_means_over_tokens_do_not_combine_by_numbers_of_samples() -> None:
    objective = Objective(baseline=Baseline.NONE, group_std=False, loss=Loss.TOKEN_MEAN)
    batch = samples([Drawn(0, 1.0, 2, 1), Drawn(1, -0.5, 1, 7)])
    means = [synchronous(objective, [sample]) for sample in batch]
    assert furthest(weighted(means, [0.5, 0.5]), synchronous(objective, batch)) > 0.1


def test_whitening_each_part_by_itself_is_not_whitening_the_batch() -> None:
    batch = samples(SIX)
    halves = [synchronous(WHITENED, batch[:3]), synchronous(WHITENED, batch[3:])]
    wanted = synchronous(WHITENED, batch)
    assert furthest(weighted(halves, [0.5, 0.5]), wanted) > 0.1
    assert furthest(streamed(WHITENED, batch), wanted) < DOUBLE


def test_the_share_of_the_plan_and_the_sums_of_the_trainer_agree() -> None:
    objective = Objective(baseline=Baseline.NONE, group_std=False)
    batch = samples(SIX)
    share, total = GradientShare(objective.loss, Given.MEAN), Count(6, sum(len(s.tokens) for s in batch))
    chunks = [batch[:2], batch[2:]]
    weights = [float(share.weight(Count(len(c), sum(len(s.tokens) for s in c)), total)) for c in chunks]
    found = weighted([synchronous(objective, chunk) for chunk in chunks], weights)
    assert furthest(found, streamed(objective, batch)) < DOUBLE


def test_a_group_is_trained_when_it_is_complete_and_waits_till_then() -> None:
    whole = GradientSum(tiny(), Objective.grpo(group_size=3))
    batch = samples(SIX)
    waiting = []
    for sample in (batch[0], batch[3], batch[1], batch[2], batch[5], batch[4]):
        whole.add([sample])
        waiting.append(whole.waiting)
    assert waiting == [1, 2, 3, 1, 2, 0]
    assert whole.finish().streamed == 6


@pytest.mark.parametrize("off", [0.0, 0.3])
def test_with_whitening_only_what_a_clip_could_bind_waits_for_the_whole_batch(off: float) -> None:
    model, batch = tiny(), samples(SIX, off)
    whole = GradientSum(model, RATIO_WHITENED)
    whole.add(batch)
    waited = whole.waiting
    stats = whole.finish()
    assert (stats.late, stats.streamed) == (waited, 6 - waited)
    assert (0 < waited < 6) if off else waited == 0
    assert stats.clipped_part > 0 if off else stats.divergence < 1e-20
    assert furthest(gradients(model), synchronous(RATIO_WHITENED, batch)) < DOUBLE


def test_deferring_trains_nothing_before_the_end() -> None:
    model, batch = tiny(), samples(SIX)
    whole = GradientSum(model, WHITENED, whole_batch=WholeBatch.DEFER)
    whole.add(batch)
    assert whole.waiting == 6
    assert whole.finish().late == 6
    assert furthest(gradients(model), synchronous(WHITENED, batch)) < DOUBLE


def test_an_update_without_a_trained_sample_leaves_nothing_that_an_optimizer_would_act_on() -> None:
    model = tiny()
    whole = GradientSum(model, Objective.dapo(group_size=2))
    whole.add(samples([Drawn(0, 1.0, 1, 2), Drawn(0, 1.0, 1, 3)]))
    stats = whole.finish()
    assert (stats.samples, stats.dropped_groups, stats.tokens) == (0, 1, 0)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_models_own_gradients_are_not_touched_before_the_end_and_then_replaced() -> None:
    model, batch = tiny(), samples(SIX)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 5.0)
    whole = GradientSum(model, WHITENED)
    whole.add(batch)
    assert all(bool((parameter.grad == 5.0).all()) for parameter in model.parameters())
    whole.finish()
    assert furthest(gradients(model), synchronous(WHITENED, batch)) < DOUBLE


def test_frozen_parameters_get_no_gradient() -> None:
    model, batch = tiny(), samples(SIX)
    model.model.embed_tokens.weight.requires_grad_(False)
    whole = GradientSum(model, WHITENED)
    whole.add(batch)
    whole.finish()
    assert model.model.embed_tokens.weight.grad is None
    assert furthest(gradients(model), synchronous(WHITENED, batch)[1:]) < DOUBLE


def test_a_pass_that_raises_leaves_its_samples_waiting_and_the_next_call_trains_them() -> None:
    model, batch = tiny(), samples(SIX)
    whole = GradientSum(model, WHITENED, token_budget=1)
    calls = 0

    def fails_once(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise MemoryError

    hook = model.model.register_forward_hook(fails_once)
    with pytest.raises(MemoryError):
        whole.add(batch)
    assert whole.waiting == 4
    hook.remove()
    whole.add([])
    assert whole.waiting == 0
    whole.finish()
    assert furthest(gradients(model), synchronous(WHITENED, batch)) < DOUBLE


def test_tokens_of_other_weights_are_refused_and_nothing_is_added() -> None:
    whole = GradientSum(tiny(), WHITENED, version=VERSION + 1)
    with pytest.raises(WrongVersion, match=f"by weights \\[{VERSION}\\], and this update is of {VERSION + 1}"):
        whole.add(samples(SIX))
    assert whole.waiting == 0
    with pytest.raises(IllegalEvent, match="no sample"):
        whole.finish()


def test_tokens_that_the_model_does_not_have_are_refused_with_all_their_places() -> None:
    model, batch = tiny(), samples(SIX)
    model.resize_token_embeddings(3)
    with pytest.raises(InvalidSpec, match="tokenizer of this model"):
        GradientSum(model, WHITENED).add(batch)


def test_scores_that_are_not_numbers_are_refused_with_their_groups() -> None:
    model = tiny()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    whole = GradientSum(model, WHITENED)
    with pytest.raises(NotANumber, match=r"\['0', '1'\]"):
        whole.add(samples(SIX))


def test_a_finished_sum_takes_no_more() -> None:
    one = GradientSum(tiny(), WHITENED)
    one.add(samples(SIX))
    one.finish()
    for late in (one.finish, lambda: one.add(samples(SIX))):
        with pytest.raises(IllegalEvent, match="make another"):
            late()


def test_an_incomplete_batch_is_refused_and_can_be_completed() -> None:
    model, batch = tiny(), samples(SIX)
    whole = GradientSum(model, Objective.grpo(group_size=3))
    whole.add(batch[:5])
    with pytest.raises(IllegalEvent, match="'1'"):
        whole.finish()
    whole.add(batch[5:])
    whole.finish()
    assert furthest(gradients(model), synchronous(Objective.grpo(), batch)) < DOUBLE


def test_a_model_that_drops_out_is_refused_unless_it_evaluates() -> None:
    model = tiny()
    model.config.attention_dropout = 0.1
    with pytest.raises(UntrainableModel, match="attention_dropout"):
        GradientSum(model.train(), WHITENED)
    GradientSum(model.eval(), WHITENED)


def test_a_model_that_changes_its_logits_after_its_head_is_refused() -> None:
    config = GraniteConfig(
        vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, logits_scaling=8.0,
    )  # fmt: skip
    model: Any = GraniteForCausalLM(config)
    with pytest.raises(UntrainableModel, match="after its head"):
        GradientSum(model, WHITENED)


@pytest.mark.parametrize("objective", [Objective.grpo(), Objective.dapo(), WHITENED])
@pytest.mark.parametrize("high", [1.0, 1000.0])
def test_single_precision_is_as_near_as_its_digits_allow(objective: Objective, high: float) -> None:
    """Rewards around 1000 that differ by 1: a sum of rewards times scores alone would lose three digits."""
    batch = samples([Drawn(each.group, each.reward + high, each.prompt_length, each.length) for each in SIX])
    model = tiny(torch.float32)
    whole = GradientSum(model, objective, token_budget=16)
    for sample in batch:
        whole.add([sample])
    whole.finish()
    found = [tensor.double() for tensor in gradients(model)]
    assert all(parameter.grad.dtype is torch.float32 for parameter in model.parameters())
    assert furthest(found, synchronous(objective, batch)) < 2e-5


def test_half_precision_is_added_up_in_single_precision() -> None:
    model, batch = tiny(torch.bfloat16), samples(SIX)
    whole = GradientSum(model, WHITENED)
    whole.add(batch)
    whole.finish()
    assert all(parameter.grad.dtype is torch.bfloat16 for parameter in model.parameters())
    assert furthest([tensor.double() for tensor in gradients(model)], synchronous(WHITENED, batch)) < 0.1
    accumulator = Accumulator([torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))])
    for _ in range(1000):  # in bfloat16 itself, 256 + 1 is 256
        accumulator.add([torch.ones(1, dtype=torch.bfloat16)], 1.0)
    assert accumulator.tensors[0].item() == accumulator.value == 1000.0
