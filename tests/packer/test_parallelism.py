"""The planner's sizes: never one that is not allowed, never a resize that does not pay, and the published figures."""

import json
from itertools import product
from math import inf
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.errors import InvalidSpec
from rollmux.packer.parallelism import Ground, ParallelismPlanner, PlannerSettings, SizeChoice
from rollmux.packer.round_time import DecodeRates, RoundLoad, predict

SETTINGS = PlannerSettings(gpus=16, server_gpus=8, resize_s=5.0)
ROUNDS = st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=30)
LOADS = st.builds(
    RoundLoad,
    requests=st.integers(1, 40),
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=6).map(tuple),
    prompt_tokens=st.integers(0, 5),
)
SPEED = st.floats(0.01, 1.0)


@st.composite
def profiles(draw: st.DrawFn) -> tuple[DecodeRates, ...]:
    sizes = draw(st.sets(st.sampled_from(SETTINGS.sizes), min_size=1))
    return tuple(
        DecodeRates(size, draw(st.integers(40, 400)) * size, draw(SPEED), draw(SPEED) / 10, 0.0, 1e6)
        for size in sorted(sizes)
    )


def told(planner: ParallelismPlanner, *short_rounds: int) -> ParallelismPlanner:
    for preemptions in short_rounds:
        planner.observe(preemptions, short=True)
    return planner


@given(size=st.sampled_from(SETTINGS.sizes), rounds=ROUNDS, adopt=st.booleans())
def test_by_preemptions_a_size_is_doubled_halved_or_kept_within_what_is_allowed(
    size: int, rounds: list[tuple[int, bool]], adopt: bool
) -> None:
    planner = ParallelismPlanner(SETTINGS, size=size)
    last_short: int | None = None
    quiet = 0
    for preemptions, short in rounds:
        planner.observe(preemptions, short=short)
        quiet = 0 if preemptions else quiet + 1
        rises = short and last_short is not None and preemptions > 1.05 * last_short
        last_short = preemptions if short else last_short
        choice = planner.choose()
        assert choice.size in SETTINGS.sizes
        assert choice.ground is Ground.PREEMPTIONS
        if rises:
            assert choice.size == min(8, planner.size * 2)
        if quiet >= 4:
            assert choice.size == max(1, planner.size // 2)
        if short and not rises and quiet < 4:
            assert choice.size == planner.size
        if adopt and choice.size != planner.size:
            planner.resized(choice.size)
            last_short, quiet = None, 0


@given(rates=profiles(), ahead=st.lists(LOADS, min_size=1, max_size=3), size=st.sampled_from(SETTINGS.sizes))
def test_the_predicted_size_begins_a_cheapest_way_through_the_rounds_ahead(
    rates: tuple[DecodeRates, ...], ahead: list[RoundLoad], size: int
) -> None:
    choice = ParallelismPlanner(SETTINGS, rates, size).choose(ahead)
    table = [{each.size: predict(each, load, 16) for each in rates} for load in ahead]
    costs = [{at: found.round_s for at, found in row.items() if found is not None} for row in table]
    costs = [row for row in costs if row]
    if not costs or size not in {each.size for each in rates}:
        assert (choice.size, choice.ground) == (size, Ground.PREEMPTIONS)
        return

    def way_s(way: tuple[int, ...]) -> float:
        resizes = sum(a != b for a, b in zip((size, *way), way, strict=False))
        return 5.0 * resizes + sum(row.get(at, inf) for at, row in zip(way, costs, strict=True))

    ways = {way: way_s(way) for way in product({size, *(at for row in costs for at in row)}, repeat=len(costs))}
    best, stay = min(ways.values()), ways[(size,) * len(costs)]
    assert choice.size == choice.by_prediction
    assert min(cost for way, cost in ways.items() if way[0] == choice.size) == pytest.approx(best)
    assert choice.saving_s == pytest.approx(stay - best if best < inf else 0.0)
    if choice.size != size:
        assert stay > best
        assert choice.saving_s > 0


@given(rates=profiles(), load=LOADS, rounds=ROUNDS, size=st.sampled_from(SETTINGS.sizes))
def test_no_smaller_size_is_chosen_while_preemptions_rise(
    rates: tuple[DecodeRates, ...], load: RoundLoad, rounds: list[tuple[int, bool]], size: int
) -> None:
    planner = ParallelismPlanner(SETTINGS, rates, size)
    for preemptions, short in rounds:
        planner.observe(preemptions, short=short)
    choice = planner.choose([load] * 20)
    if all(predict(each, load, 16) is not None for each in rates if each.size == size):
        assert not choice.size < size < choice.by_preemptions
        assert choice.size >= size or not planner.state()["risen"]
    if choice.ground is Ground.DISAGREEMENT:
        assert choice.size == size != choice.by_prediction


@pytest.mark.parametrize(("seen", "size"), [((), 2), ((100, 200), 4), ((0, 0, 0, 0), 1)])
def test_while_the_present_size_is_not_profiled_the_preemptions_alone_decide(seen: tuple[int, ...], size: int) -> None:
    others = [DecodeRates(each, 10**6, 0.1, 0.0, 0.0, 1e9) for each in (1, 4, 8)]
    choice = told(ParallelismPlanner(SETTINGS, others, 2), *seen).choose([RoundLoad(16, (50,))] * 100)
    assert choice == SizeChoice(size, Ground.PREEMPTIONS, size)


@given(before=ROUNDS, after=ROUNDS, rates=profiles(), load=LOADS)
def test_a_planner_restored_from_json_goes_on_as_if_it_had_never_stopped(
    before: list[tuple[int, bool]], after: list[tuple[int, bool]], rates: tuple[DecodeRates, ...], load: RoundLoad
) -> None:
    planner = ParallelismPlanner(SETTINGS, rates, 4)
    for preemptions, short in before:
        planner.observe(preemptions, short=short)
    twin = ParallelismPlanner.from_state(SETTINGS, json.loads(json.dumps(planner.state())), rates)
    for preemptions, short in after:
        for each in (planner, twin):
            each.observe(preemptions, short=short)
        assert twin.choose() == planner.choose()
        assert twin.choose([load]) == planner.choose([load])
    assert twin.state() == planner.state()


def test_a_resize_is_made_only_where_the_rounds_ahead_repay_it() -> None:
    slow, fast = DecodeRates(1, 10**6, 1.0, 0.0, 0.0, 1e9), DecodeRates(2, 10**6, 0.9, 0.0, 0.0, 1e9)
    load = RoundLoad(16, (20,))
    planner = ParallelismPlanner(SETTINGS, (slow, fast), 1)
    assert [planner.choose([load] * n).size for n in (1, 2, 3, 4)] == [1, 1, 2, 2], "each round saves 2 s of the 5"
    assert planner.choose([load] * 3).saving_s == pytest.approx(1.0)


def test_a_size_that_can_not_hold_the_longest_request_is_left_even_against_the_preemptions() -> None:
    profile = DecodeRates(1, 10, 0.1, 0.0, 0.0, 1e9), DecodeRates(2, 100, 1.0, 0.0, 0.0, 1e9)
    planner = ParallelismPlanner(SETTINGS, profile, 1)
    choice = planner.choose([RoundLoad(16, (50,))])
    assert (choice.size, choice.ground, choice.saving_s) == (2, Ground.PREDICTION, inf)
    wide = DecodeRates(4, 100, 1.0, 0.0, 0.0, 1e9)
    upwards = told(ParallelismPlanner(SETTINGS, (DecodeRates(2, 10, 0.1, 0.0, 0.0, 1e9), wide), 2), 0, 0, 0, 0)
    choice = upwards.choose([RoundLoad(16, (50,))])
    assert (choice.size, choice.by_preemptions) == (4, 1)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_where_sizes_are_equally_fast_the_size_stays_even_if_a_resize_is_free(size: int) -> None:
    free = PlannerSettings(gpus=16, server_gpus=8)
    profile = [DecodeRates(each, 10**6, 1.0, 0.0, 0.0, 1e9) for each in (1, 2, 4)]
    assert ParallelismPlanner(free, profile, size).choose([RoundLoad(4, (50,))]).size == size


def test_preemptions_veto_a_prediction_that_points_the_other_way() -> None:
    profile = DecodeRates(1, 10**6, 0.1, 0.0, 0.0, 1e9), DecodeRates(2, 10**6, 1.0, 0.0, 0.0, 1e9)
    planner = told(ParallelismPlanner(SETTINGS, profile, 2), 100, 106)
    choice = planner.choose([RoundLoad(16, (50,))])
    assert (choice.size, choice.ground) == (2, Ground.DISAGREEMENT)
    assert (choice.by_prediction, choice.by_preemptions) == (1, 4)
    planner.observe(106, short=True)
    assert planner.choose([RoundLoad(16, (50,))]).size == 1


def test_the_largest_size_is_not_left_for_a_smaller_one_either_while_preemptions_rise() -> None:
    largest = SETTINGS.sizes[-1]
    profile = DecodeRates(1, 10**6, 0.1, 0.0, 0.0, 1e9), DecodeRates(largest, 10**6, 1.0, 0.0, 0.0, 1e9)
    choice = told(ParallelismPlanner(SETTINGS, profile, largest), 100, 106).choose([RoundLoad(16, (50,))])
    assert (choice.size, choice.ground, choice.by_prediction) == (largest, Ground.DISAGREEMENT, 1)


def test_quiet_rounds_do_not_keep_a_larger_size_from_being_chosen_where_it_is_faster() -> None:
    profile = DecodeRates(1, 10**6, 1.0, 0.0, 0.0, 1e9), DecodeRates(2, 10**6, 0.1, 0.0, 0.0, 1e9)
    planner = told(ParallelismPlanner(SETTINGS, profile, 1), 0, 0, 0, 0, 0)
    assert planner.choose([RoundLoad(16, (50,))]).size == 2


@pytest.mark.parametrize(("before", "after", "size"), [(100, 105, 2), (100, 106, 4), (0, 1, 4), (50, 10, 2)])
def test_a_rise_is_more_than_five_percent_over_the_short_round_before(before: int, after: int, size: int) -> None:
    planner = told(ParallelismPlanner(SETTINGS, size=2), before)
    planner.observe(before * 3, short=False)
    assert planner.choose().size == 2, "long rounds are no measure"
    assert told(planner, after).choose().size == size


def test_a_resize_begins_a_new_count() -> None:
    planner = told(ParallelismPlanner(SETTINGS), 10, 20)
    planner.resized(1)
    assert planner.choose().size == 2, "no resize: the rise stands"
    planner.resized(2)
    assert told(planner, 40).choose().size == 2, "what the old size preempted is no measure for the new one"


def test_sizes_make_whole_replicas_within_a_server() -> None:
    assert PlannerSettings(gpus=16, server_gpus=8).sizes == (1, 2, 4, 8)
    assert PlannerSettings(gpus=12, server_gpus=8).sizes == (1, 2, 4)
    assert PlannerSettings(gpus=16, server_gpus=8, smallest=2).sizes == (2, 4, 8)


def test_settings_report_all_that_is_wrong_with_them() -> None:
    with pytest.raises(InvalidSpec) as several:
        PlannerSettings(gpus=0, server_gpus=8, resize_s=-1.0, rise=0.5, quiet_rounds=0)
    assert len(several.value.problems) == 4
    with pytest.raises(InvalidSpec, match="divisor of the 16 GPUs"):
        PlannerSettings(gpus=16, server_gpus=8, smallest=3)


def test_a_planner_refuses_sizes_that_its_settings_do_not_allow() -> None:
    with pytest.raises(InvalidSpec) as several:
        ParallelismPlanner(SETTINGS, [DecodeRates(size, 10, 1.0, 0.0, 0.0, 1.0) for size in (1, 1, 16)], 3)
    assert [problem.path for problem in several.value.problems] == [
        "planner.size",
        "planner.rates[0].size",
        "planner.rates[2].size",
    ]
    planner = told(ParallelismPlanner(SETTINGS), 10, 20)
    before = planner.state()
    with pytest.raises(InvalidSpec):
        planner.resized(3)
    assert planner.state() == before
    with pytest.raises(InvalidSpec):
        ParallelismPlanner(SETTINGS).observe(-1, short=True)


def test_a_state_with_other_names_or_values_is_refused() -> None:
    state = ParallelismPlanner(SETTINGS).state()
    with pytest.raises(InvalidSpec, match="did you mean 'quiet'") as renamed:
        ParallelismPlanner.from_state(SETTINGS, {**{k: v for k, v in state.items() if k != "quiet"}, "quit": 0})
    assert len(renamed.value.problems) == 2
    with pytest.raises(InvalidSpec) as wrong:
        ParallelismPlanner.from_state(SETTINGS, {**state, "quiet": -1, "last_short": "3", "risen": 1})
    assert len(wrong.value.problems) == 3


# What RollPacker (arXiv 2509.21009) reports of tensor parallelism, and a plausible profile of its H800 GPUs: bf16
# weights and KV at 80 % of the memory bandwidth, half of the peak rate, 0.1 ms of host time for each running request,
# 30 microseconds for each of two reductions per layer, 65 % of the memory for weights and KV.
CHOSEN_14B = {8: 1, 10: 1, 12: 1, 14: 2, 16: 2, 18: 2, 20: 2, 22: 2, 24: 4, 26: 4, 28: 4, 30: 4, 32: 4}


def h800(size: int, parameters: float, layers: int, kv_bytes: int) -> DecodeRates:
    weights, bandwidth, flops = 2 * parameters / size, 0.8 * 3.35e12, 0.5 * 990e12
    return DecodeRates(
        size=size,
        kv_room_tokens=int((0.65 * 80e9 - weights) * size / kv_bytes),
        base_s=weights / bandwidth + 1e-3 + (2 * layers * 30e-6 if size > 1 else 0.0),
        per_request_s=2 * parameters / size / flops + 1e-4,
        per_kv_token_s=kv_bytes / size / bandwidth,
        prefill_tokens_per_s=flops * size / (2 * parameters),
    )


def quantiles(median: float, sigma: float, cap: int) -> tuple[int, ...]:
    normal = NormalDist(0.0, sigma)
    return tuple(min(cap, int(median * 2.718281828 ** normal.inv_cdf((i + 0.5) / 150))) for i in range(150))


def test_for_14b_on_16_gpus_the_size_rises_with_the_cap_as_published() -> None:
    """Dynamic tensor parallelism, 14B: 1 up to 12k tokens, 2 from 14k on, 4 from 24k on; never 8."""
    profile = [h800(size, 14.8e9, 48, 196_608) for size in (1, 2, 4, 8)]
    planner = ParallelismPlanner(PlannerSettings(gpus=16, server_gpus=8), profile)
    chosen = {}
    for cap in CHOSEN_14B:
        size = planner.choose([RoundLoad(1600, quantiles(1500, 1.3, cap * 1024), 300)]).size
        chosen[cap] = size
        planner.resized(size)
    assert sorted(chosen.values()) == list(chosen.values())
    ends = (8, 14, 24, 32)
    assert {cap: chosen[cap] for cap in ends} == {cap: CHOSEN_14B[cap] for cap in ends}
    assert sum(chosen[cap] == CHOSEN_14B[cap] for cap in CHOSEN_14B) >= 9


def test_for_8b_at_32k_on_8_gpus_short_rounds_want_two_gpus_and_long_ones_one() -> None:
    """Tensor parallelism of Qwen3-8B: fewer preemptions with 2, which short rounds gain by and long ones do not."""
    profile = [h800(size, 8.2e9, 36, 147_456) for size in (1, 2)]
    lengths = quantiles(6000, 0.9, 32_768)
    short, long = RoundLoad(1600, lengths, 300, 1024), RoundLoad(1024, lengths[60:], 300)
    planner = ParallelismPlanner(PlannerSettings(gpus=8, server_gpus=8), profile)
    assert [planner.choose([load]).size for load in (short, long)] == [2, 1]
    for load in (short, long):
        one, two = (found.preemptions for _, found in planner.choose([load]).predicted)
        assert two < one
