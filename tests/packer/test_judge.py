"""How many layers of a judge stay: as few as can be without making computation wait, and never more than fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.errors import InvalidSpec
from rollmux.packer.judge import JudgeBudget, JudgeModel, JudgePlan, JudgeRefused, pass_times, spread

MODELS = st.builds(
    JudgeModel,
    layers=st.integers(1, 24),
    layer_bytes=st.integers(1, 50),
    dense_flops=st.floats(0.1, 5.0),
    attention_flops=st.floats(0.0, 0.1),
    kv_bytes=st.integers(0, 2),
    other_bytes=st.integers(0, 30),
)
BUDGETS = st.builds(JudgeBudget, MODELS, host_bytes_per_s=st.floats(0.5, 20.0), flops_per_s=st.floats(0.5, 20.0))
TOKENS = st.integers(1, 40)
FREE = st.integers(0, 2000)


@given(budget=BUDGETS, tokens=TOKENS, batch=st.integers(1, 3), free=FREE)
def test_a_plan_fits_and_accounts_for_every_layer(budget: JudgeBudget, tokens: int, batch: int, free: int) -> None:
    model, plan = budget.model, budget.plan(tokens, free, batch)
    fixed = model.other_bytes + model.kv_bytes * tokens * batch
    if isinstance(plan, JudgeRefused):
        assert plan.free_bytes == free < plan.needed_bytes
        assert plan.needed_bytes == fixed + min(2, model.layers) * model.layer_bytes
        return
    assert plan.resident + len(plan.streamed) == model.layers
    assert len(set(plan.streamed)) == len(plan.streamed)
    assert set(plan.streamed) <= set(range(model.layers))
    assert plan.device_bytes == fixed + (plan.resident + min(2, len(plan.streamed))) * model.layer_bytes <= free


@given(budget=BUDGETS, tokens=TOKENS, free=FREE)
def test_the_least_that_is_needed_is_accepted(budget: JudgeBudget, tokens: int, free: int) -> None:
    refused = budget.plan(tokens, free)
    if isinstance(refused, JudgeRefused):
        assert isinstance(budget.plan(tokens, refused.needed_bytes), JudgePlan)


@given(budget=BUDGETS, tokens=TOKENS, free=FREE)
def test_a_pass_takes_at_least_its_computation_and_its_transfers_and_never_both_in_turn(
    budget: JudgeBudget, tokens: int, free: int
) -> None:
    plan = budget.plan(tokens, free)
    if isinstance(plan, JudgePlan):
        busiest = max(plan.compute_s, plan.transfer_s)
        assert busiest * (1 - 1e-9) <= plan.pass_s <= (plan.compute_s + plan.transfer_s) * (1 + 1e-9)
        assert plan.pass_s <= plan.first_pass_s * (1 + 1e-9)
        assert plan.exposed_s == pytest.approx(plan.pass_s - plan.compute_s, abs=1e-9 * plan.pass_s)
        if plan.hidden:
            assert plan.transfer_s <= plan.compute_s * (1 + 1e-6)


@given(budget=BUDGETS, tokens=TOKENS, free=FREE)
def test_fewer_resident_layers_would_make_computation_wait_and_more_only_where_there_is_no_room(
    budget: JudgeBudget, tokens: int, free: int
) -> None:
    plan = budget.plan(tokens, free)
    if not isinstance(plan, JudgePlan):
        return
    layers = budget.model.layers
    layer_s, fetch_s = plan.compute_s / layers, budget.model.layer_bytes / budget.host_bytes_per_s
    for fewer in range(plan.resident):
        _, pass_s = pass_times(layers, spread(layers, layers - fewer), layer_s, fetch_s)
        assert pass_s > plan.compute_s * (1 + 1e-10)
    if not plan.hidden:
        more = plan.resident + 1
        fixed = budget.model.other_bytes + budget.model.kv_bytes * tokens
        assert fixed + (more + min(2, layers - more)) * budget.model.layer_bytes > free


@given(layers=st.integers(1, 24), data=st.data(), layer_s=st.floats(0.1, 5.0), fetch_s=st.floats(0.1, 5.0))
def test_no_more_stays_than_the_bare_arithmetic_asks_for_but_for_rounding(
    layers: int, data: st.DataObject, layer_s: float, fetch_s: float
) -> None:
    """Transfers of a pass below its computation nearly suffices: two buffers and an even spread lose little."""
    streamed = data.draw(st.integers(0, layers))
    _, pass_s = pass_times(layers, spread(layers, streamed), layer_s, fetch_s)
    assert pass_s == pytest.approx(pass_times(layers, spread(layers, streamed), layer_s, fetch_s, 20)[1]), "settled"
    assert pass_s <= max(layers * layer_s, streamed * fetch_s) + 2 * max(layer_s, fetch_s)


@given(layers=st.integers(1, 60), data=st.data())
def test_streamed_layers_are_spread_evenly(layers: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, layers))
    places = spread(layers, count)
    gaps = [b - a for a, b in zip((-1, *places), places, strict=False)]
    assert len(places) == count
    assert places[-1] == layers - 1
    assert max(gaps) - min(gaps) <= 1


# A judge of 7B in bf16 beside the actor, on a host link of 50 GB/s at half of a device's 990 Tflop/s.
JUDGE = JudgeModel(layers=28, layer_bytes=466_000_000, dense_flops=466e6, attention_flops=14_336, kv_bytes=57_344)
BUDGET = JudgeBudget(JUDGE, host_bytes_per_s=50e9, flops_per_s=495e12)


def test_the_longer_the_judged_text_the_fewer_layers_stay() -> None:
    plans = [BUDGET.plan(tokens, 40 * 10**9) for tokens in (512, 2048, 4096, 8192, 16384)]
    resident = [plan.resident for plan in plans if isinstance(plan, JudgePlan)]
    assert resident == sorted(resident, reverse=True)
    assert resident[0] > 20
    assert resident[-1] == 0
    assert all(plan.hidden for plan in plans if isinstance(plan, JudgePlan))


def test_with_too_little_room_a_plan_says_how_long_computation_waits() -> None:
    plan = BUDGET.plan(2048, 3 * 10**9)
    assert isinstance(plan, JudgePlan)
    assert not plan.hidden
    assert plan.resident == 4
    assert plan.pass_s == pytest.approx(plan.transfer_s, rel=0.05)
    assert plan.exposed_s == pytest.approx(plan.pass_s - plan.compute_s)


def test_below_two_buffers_the_judge_is_refused_and_told_what_it_needs() -> None:
    fixed = 57_344 * 1000
    assert isinstance(BUDGET.plan(1000, fixed + 2 * 466_000_000), JudgePlan)
    refused = BUDGET.plan(1000, fixed + 2 * 466_000_000 - 1)
    assert refused == JudgeRefused(fixed + 2 * 466_000_000, fixed + 2 * 466_000_000 - 1)


def test_a_model_of_one_layer_needs_no_second_buffer() -> None:
    one = JudgeBudget(JudgeModel(layers=1, layer_bytes=10, dense_flops=1.0), 1.0, 1.0)
    held = one.plan(3, 10)
    assert isinstance(held, JudgePlan)
    assert held.device_bytes == 10
    assert one.plan(3, 9) == JudgeRefused(10, 9)


def test_models_budgets_and_passes_report_all_that_is_wrong_with_them() -> None:
    with pytest.raises(InvalidSpec) as model:
        JudgeModel(0, 0, 0.0, -1.0, -1, -1)
    assert len(model.value.problems) == 6
    with pytest.raises(InvalidSpec) as budget:
        JudgeBudget(JUDGE, 0.0, 0.0)
    assert len(budget.value.problems) == 2
    with pytest.raises(InvalidSpec) as one_pass:
        BUDGET.plan(0, -1, 0)
    assert len(one_pass.value.problems) == 3
