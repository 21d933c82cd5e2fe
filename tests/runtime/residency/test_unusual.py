"""State that is looked at, dropped, refused or not quite ordinary: none of it is lost, and no memory stays taken."""

import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from rollmux.runtime.host import Busy
from rollmux.runtime.residency import Budget, Changed, CpuMemory, NotFreed, Resident, Unfit, Visitor
from rollmux.runtime.residency.leaves import leaves
from tests.runtime.residency.keeping import MB

ROOT = Path(__file__).resolve().parents[3]


def some(value: float = 1.0) -> dict[str, Tensor]:
    return {"w": torch.full((100_000,), value)}


def read_only(state: object, budget: Budget, slots: int = 2) -> Resident:
    """On the device, with a copy on the host."""
    resident = Resident(state, name="a", budget=budget, read_only=True, slots=slots)
    resident.offload()
    resident.load()
    return resident


def test_who_attaches_while_a_tensor_is_looked_at_does_not_lose_what_is_kept(budget: Budget) -> None:
    first = Resident(some(7.0), name="a", budget=budget, survive_s=60)
    first.offload()
    first.close(keep=True)
    state = some()
    view = state["w"][:3]
    with pytest.raises(NotFreed):
        Resident.attach(state, name="a", budget=budget)
    assert view.sum() == 3
    del view
    again = some()
    Resident.attach(again, name="a", budget=budget).load()
    assert torch.equal(again["w"], torch.full((100_000,), 7.0))


def test_an_update_that_comes_while_a_tensor_is_looked_at_is_there_at_the_next_load(budget: Budget) -> None:
    state = some()
    resident = read_only(state, budget)
    resident.update({"w": torch.full((100_000,), 2.0)})
    view = state["w"][:3]
    with pytest.raises(NotFreed):
        resident.load()
    del view
    resident.load()
    assert torch.equal(state["w"], torch.full((100_000,), 2.0))


@pytest.mark.parametrize("end", [Resident.drop, Resident.close])
def test_read_only_state_whose_copy_was_given_up_is_saved_again(end: object, budget: Budget) -> None:
    state = some(3.0)
    resident = read_only(state, budget)
    end(resident)  # type: ignore[operator]
    resident.offload()
    assert not state["w"].numel()
    resident.load()
    assert torch.equal(state["w"], torch.full((100_000,), 3.0))


def test_a_copy_that_could_not_be_given_up_is_still_there_and_can_be_given_up_later(
    budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = some(3.0)
    resident = Resident(state, name="a", budget=budget)
    resident.offload()

    def held(*_: object) -> None:
        raise Busy("the folder is locked")

    with monkeypatch.context() as patched:
        patched.setattr(Budget, "locked", held)
        with pytest.raises(Busy):
            resident.close()
    resident.load()
    assert torch.equal(state["w"], torch.full((100_000,), 3.0))
    resident.close()
    assert budget.holdings() == ()


def test_notes_go_with_an_update_and_do_not_undo_it(budget: Budget) -> None:
    state = some()
    resident = read_only(state, budget)
    resident.update({"w": torch.full((100_000,), 2.0)})
    resident.offload(b"words")
    assert (resident.version, resident.notes) == (3, b"words")
    resident.load()
    assert torch.equal(state["w"], torch.full((100_000,), 2.0))


def test_a_change_of_read_only_state_is_not_lost_to_notes_or_to_an_update(budget: Budget) -> None:
    state = some()
    resident = read_only(state, budget)
    state["w"].add_(1)
    with pytest.raises(Changed):
        resident.offload(b"words")
    resident.update({"w": torch.full((100_000,), 5.0)})
    with pytest.raises(Changed):
        resident.load()
    assert torch.equal(state["w"], torch.full((100_000,), 2.0))


@pytest.mark.parametrize("values", [{"w": torch.ones(9)}, {"w": torch.ones(100_000)}], ids=["shape", "notes"])
def test_an_update_that_is_refused_leaves_the_only_version_whole(values: dict[str, Tensor], budget: Budget) -> None:
    state = some(4.0)
    resident = Resident(state, name="a", budget=budget, slots=1)
    resident.offload()
    with pytest.raises(Unfit):
        resident.update(values, notes=bytes(100_000))
    resident.load()
    assert torch.equal(state["w"], torch.full((100_000,), 4.0))


@pytest.mark.parametrize(
    ("value", "notes"),
    [
        (torch.ones(100_000).to_sparse(), None),
        (torch.ones(100_000, device="meta"), None),
        (torch.zeros(100_000, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), None),
        (torch.ones(100_000), "words"),
    ],
    ids=["sparse", "without data", "of half bytes", "words for notes"],
)
def test_an_update_that_nobody_can_write_is_refused_before_it_is_begun(
    value: Tensor, notes: Any, budget: Budget
) -> None:
    state = some(4.0)
    resident = Resident(state, name="a", budget=budget, slots=1)
    resident.offload()
    with pytest.raises(Unfit):
        resident.update({"w": value}, notes)
    assert resident.version == 1
    resident.load()
    assert torch.equal(state["w"], torch.full((100_000,), 4.0))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_update_in_one_slot_that_is_broken_off_leaves_the_copy_on_the_device(
    error: type[BaseException], budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = some(4.0)
    resident = read_only(state, budget, slots=1)

    def broken(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(torch, "as_strided", broken)
        with pytest.raises(error):
            resident.update({"w": torch.ones(100_000)})
    resident.offload()
    resident.load()
    assert torch.equal(state["w"], torch.full((100_000,), 4.0))


@pytest.mark.parametrize(
    "target", [torch.ones(100, 1).expand(100, 3), torch.arange(10.0).unfold(0, 4, 1)], ids=["expanded", "unfolded"]
)
def test_a_tensor_whose_elements_share_memory_is_not_updated(target: Tensor, budget: Budget) -> None:
    before, state = target.clone(), {"w": target}
    resident = Resident(state, name="a", budget=budget, slots=1)
    resident.offload()
    with pytest.raises(Unfit, match="share memory"):
        resident.update({"w": torch.zeros(before.shape)})
    resident.load()
    assert torch.equal(state["w"], before)


def test_an_update_may_be_of_another_type_and_of_parameters(budget: Budget) -> None:
    state = {"w": torch.ones(10, 4).t(), "v": torch.ones(3)}
    resident = Resident(state, name="a", budget=budget, slots=1)
    resident.offload()
    new = torch.arange(40.0, dtype=torch.float64).view(4, 10)
    resident.update({"w": new, "v": nn.Parameter(torch.full((3,), 2.0))})
    resident.load()
    assert torch.equal(state["w"], new.float())
    assert torch.equal(state["v"], torch.full((3,), 2.0))


def test_an_update_knows_tied_tensors_by_all_names_and_they_get_one_value(budget: Budget) -> None:
    """As a model's `state_dict()` has them, whatever holds the model. What a module is in twice has two names too."""
    model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5), "norm": nn.BatchNorm1d(5)})
    cast("nn.Linear", model["head"]).weight = cast("nn.Embedding", model["embed"]).weight
    model["last"] = model["norm"]
    resident = read_only({"model": model.requires_grad_(False)}, budget)
    new = {f"model.{name}": torch.full_like(value, 2) for name, value in model.state_dict().items()}
    assert {"model.embed.weight", "model.head.weight", "model.last.running_mean"} <= new.keys()
    resident.update(new)
    resident.load()
    assert all(bool((value == 2).all()) for value in model.state_dict().values())
    three = torch.full((5, 3), 3.0)
    with pytest.raises(Unfit, match=r"'model\.embed\.weight' has other values than 'model\.head\.weight'"):
        resident.update({"model.head.weight": three, "model.embed.weight": three + 1})
    resident.update({"model.embed.weight": three.double(), "model.head.weight": three})
    third, unknown = torch.full((5, 3), 1 / 3, dtype=torch.float64), torch.full((5, 3), torch.nan)
    for one, other in ((third, third.float()), (third.float(), third), (unknown, unknown.clone())):
        resident.update({"model.embed.weight": one, "model.head.weight": other})
    resident.offload()
    resident.update({"model.head.weight": three + 1})
    resident.load()
    assert torch.equal(model.state_dict()["embed.weight"], three + 1)


@pytest.mark.parametrize("size", [1, 4])
def test_tied_tensors_may_be_given_columns_of_something(size: int, budget: Budget) -> None:
    bias = torch.zeros(size)
    resident = Resident({"one": bias, "other": bias.view(size)}, name="a", budget=budget, read_only=True)
    columns = torch.arange(2.0 * size).view(size, 2)
    resident.update({"one": columns[:, 0], "other": columns[:, 0].clone()})
    with pytest.raises(Unfit, match="which it is tied to"):
        resident.update({"one": columns[:, 0], "other": columns[:, 1]})
    resident.offload()
    resident.load()
    assert bias.tolist() == [0.0, 2.0, 4.0, 6.0][:size]


@pytest.mark.parametrize("slots", [1, 2])
def test_an_update_of_views_over_the_same_memory_is_one_that_agrees_with_itself(slots: int, budget: Budget) -> None:
    whole = torch.zeros(4, 3)
    state = {"whole": whole, "row": whole[1], "left": whole[:, 0], "right": whole[:, 2], "other": torch.zeros(3)}
    state["cell"] = whole[2:, 1][:1]
    resident = Resident(state, name="a", budget=budget, read_only=True, slots=slots)
    resident.offload()
    values = torch.arange(12.0).view(4, 3)
    fit = {"row": values[1], "left": values[:, 0].double(), "right": values[:, 2], "other": values[0]}
    fit["cell"] = values[2:, 1][:1]
    with pytest.raises(Unfit, match=r"'whole' shares memory with some of \['row'\], and has other values there"):
        resident.update({"row": values[1] + 1, "whole": values})
    with pytest.raises(Unfit, match=r"'left' shares memory with some of .*'row'"):
        resident.update(fit | {"left": values[:, 0] + torch.eye(4)[1]})
    resident.update(fit | {"left": values[:, 0] + torch.eye(4)[2]})
    resident.load()
    assert whole[:, 0].tolist() == [0.0, 3.0, 7.0, 9.0]
    resident.offload()
    resident.update(fit | {"whole": values})
    resident.load()
    assert torch.equal(whole, values)
    assert torch.equal(state["other"], values[0])


@pytest.mark.parametrize("by", ["object", "data"])
def test_an_update_that_contradicts_itself_is_refused_however_its_tensors_are_tied(by: str, budget: Budget) -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)}).requires_grad_(False)
    embed, head = cast("nn.Embedding", model["embed"]), cast("nn.Linear", model["head"])
    if by == "object":
        head.weight = embed.weight
    else:
        head.weight.data = embed.weight.data
    resident = read_only(model, budget)
    two = torch.full((5, 3), 2.0)
    with pytest.raises(Unfit, match="which it is tied to"):
        resident.update({"embed.weight": two, "head.weight": two + 1})
    resident.update({"embed.weight": two, "head.weight": two.clone()})
    resident.load()
    assert torch.equal(embed.weight, two)
    assert torch.equal(head.weight, two)


def test_an_update_in_another_type_takes_room_for_a_tensor_at_a_time(
    budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {str(k): torch.full((MB // 4,), float(k)) for k in range(6)}
    resident = Resident(state, name="a", budget=budget)
    resident.offload()
    made, live, peak = torch.empty, [0], [0]

    def counted(*size: Any, **kinds: Any) -> Tensor:
        tensor = made(*size, **kinds)
        live[0] += tensor.nbytes
        peak[0] = max(peak[0], live[0])
        weakref.finalize(tensor, lambda nbytes: live.__setitem__(0, live[0] - nbytes), tensor.nbytes)
        return tensor

    monkeypatch.setattr(torch, "empty", counted)
    resident.update({name: torch.full((MB // 4,), 9.0, dtype=torch.float64) for name in state})
    assert MB <= peak[0] < 2 * MB
    resident.load()
    assert all(torch.equal(tensor, torch.full((MB // 4,), 9.0)) for tensor in state.values())


@pytest.mark.parametrize("slots", [1, 2])
def test_notes_that_are_no_bytes_are_refused_before_anything_is_moved(slots: int, budget: Budget) -> None:
    state, words = some(), cast("Any", "words")
    resident = Resident(state, name="a", budget=budget, slots=slots)
    resident.offload()
    resident.load()
    with pytest.raises(Unfit, match="give bytes"):
        resident.offload(words)
    assert resident.version == 1
    assert state["w"].numel()


def optimizer_with(extra: Callable[[Any, Tensor], object]) -> tuple[nn.Module, Any]:
    """Whose state is not what torch's own optimizers have."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.state[model.weight]["average"] = torch.ones(1, 3)
    extra(optimizer, model.weight)
    return model, optimizer


def test_what_an_optimizer_keeps_for_no_parameter_moves_and_is_kept_too(budget: Budget) -> None:
    def extra(optimizer: Any, _: Tensor) -> None:
        optimizer.state["all"] = {"average": torch.full((4,), 5.0)}

    first = optimizer_with(extra)
    resident = Resident(first, name="a", budget=budget, survive_s=60)
    resident.offload()
    assert not first[1].state["all"]["average"].numel()
    resident.close(keep=True)
    again = optimizer_with(extra)
    again[1].state["all"]["average"].zero_()
    Resident.attach(again, name="a", budget=budget).load()
    assert torch.equal(again[1].state["all"]["average"], torch.full((4,), 5.0))


def kept_by(optimizer: Any) -> list[object]:
    return [str(value) for value in optimizer.state.values()]


@pytest.mark.parametrize(
    ("place", "is_made"),
    [
        (lambda state, weight: state.update({weight: {"m": torch.ones(2)}, "count": torch.ones(())}), True),
        (lambda state, weight: state.update({weight: {"inner": {"m": torch.ones(2)}}}), False),
        (lambda state, weight: state.update({weight: {0: torch.ones(2)}}), False),
        (lambda state, weight: state.update({weight: [torch.ones(2)]}), False),
        (lambda state, _: state.update({-1: torch.ones(2)}), False),
    ],
    ids=["for none", "nested", "under a number", "in a list", "for none, under a number"],
)
def test_what_an_optimizer_keeps_is_made_for_one_without_a_step_as_it_was_or_has_to_be_built(
    place: Callable[[Any, Tensor], object], is_made: bool, budget: Budget
) -> None:
    def fresh() -> tuple[nn.Parameter, Any]:
        weight = nn.Parameter(torch.ones(3))
        return weight, torch.optim.SGD([weight])

    first = fresh()
    place(first[1].state, first[0])
    expected = kept_by(first[1])
    resident = Resident(first, name="a", budget=budget, survive_s=60)
    resident.offload()
    resident.close(keep=True)
    again = fresh()
    if not is_made:
        with pytest.raises(Unfit, match="build the state as it was"):
            Resident.attach(again, name="a", budget=budget)
        assert not again[1].state
        place(again[1].state, again[0])
    Resident.attach(again, name="a", budget=budget).load()
    assert kept_by(again[1]) == expected


def test_an_optimizer_that_keeps_something_for_a_tensor_that_is_not_its_own_is_refused(budget: Budget) -> None:
    def extra(optimizer: Any, _: Tensor) -> None:
        optimizer.state[torch.ones(3)] = {"average": torch.ones(3)}

    with pytest.raises(Unfit, match="none of the optimizer's parameters"):
        Resident(optimizer_with(extra), name="a", budget=budget)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (lambda state, weight: state[weight].update(step=3), r"1\.state\.0\.step"),
        (lambda state, weight: state[weight].update(inner={"m": torch.ones(2), "steps": [torch.ones(2), 3]}),
         r"1\.state\.0\.inner\.steps\.1"),
        (lambda state, _: state.update(k=3), r"1\.state\.k"),
        (lambda state, weight: state.update(fast=optimizer_with(lambda inner, w: inner.state[w].update(k=3))[1]),
         r"1\.state\.fast\.state\.0\.k"),
    ],
    ids=["of a parameter", "nested", "of none", "of an optimizer within"],
)  # fmt: skip
def test_a_plain_number_of_an_optimizer_is_no_state_that_survives(
    place: Callable[[Any, Tensor], object], said: str, budget: Budget
) -> None:
    state = optimizer_with(lambda optimizer, weight: place(optimizer.state, weight))
    with pytest.raises(Unfit, match=rf"'a' is to survive, and {said} is a number, .* or leave `survive_s` out"):
        Resident(state, name="a", budget=budget, survive_s=60)
    before = str(state[1].state)
    resident = Resident(state, name="b", budget=budget)
    resident.offload()
    resident.load()
    assert str(state[1].state) == before


def test_a_module_or_an_optimizer_that_an_optimizer_keeps_survives_with_it(budget: Budget) -> None:
    def extra(optimizer: Any, weight: Tensor) -> None:
        optimizer.state["average"] = nn.Linear(2, 1)
        optimizer.state["fast"] = optimizer_with(lambda *_: None)[1]
        optimizer.state[weight]["head"] = nn.Linear(1, 1)

    first = optimizer_with(extra)
    expected = [leaf.tensor.tolist() for leaf in leaves(first)]
    resident = Resident(first, name="a", budget=budget, survive_s=60)
    resident.offload()
    resident.close(keep=True)
    again = optimizer_with(extra)
    Resident.attach(again, name="a", budget=budget).load()
    assert [leaf.tensor.tolist() for leaf in leaves(again)] == expected


def test_an_empty_tensor_may_be_updated(budget: Budget) -> None:
    state = {**some(), "none": torch.ones(5)[:0]}
    resident = Resident(state, name="a", budget=budget)
    resident.offload()
    resident.update({"none": torch.ones(0), "w": torch.full((100_000,), 6.0)})
    resident.load()
    assert torch.equal(state["w"], torch.full((100_000,), 6.0))


def test_read_only_state_with_other_tensors_than_were_loaded_stays_where_it_is(budget: Budget) -> None:
    model = nn.Linear(300, 300)
    resident = read_only(model, budget)
    before, model.weight = model.weight, nn.Parameter(torch.ones(300, 300))
    with pytest.raises(Changed, match="'weight' was changed"):
        resident.offload()
    model.weight = before
    model(torch.ones(1, 300)).sum().backward()
    with pytest.raises(Changed):
        resident.offload()
    model.zero_grad(set_to_none=True)
    bias, model.bias = model.bias, None  # type: ignore[assignment]
    with pytest.raises(Changed, match="other tensors"):
        resident.offload()
    model.bias = bias
    resident.offload()
    assert not model.weight.numel()


def test_tensors_of_inference_mode_may_be_read_only_outside_it(budget: Budget) -> None:
    with torch.inference_mode():
        state = some(2.0)
    resident = read_only(state, budget)
    resident.offload()
    resident.load()
    assert state["w"].sum() == 200_000


def test_gradients_that_are_views_of_one_buffer_move_with_it(budget: Budget) -> None:
    model = nn.Linear(100, 100)
    buffer = torch.arange(10_100.0)
    model.weight.grad, model.bias.grad = buffer[:10_000].view(100, 100), buffer[10_000:]
    resident = Resident(model, name="a", budget=budget)
    del buffer
    resident.offload()
    resident.load()
    assert torch.equal(model.bias.grad, torch.arange(10_000.0, 10_100.0))
    assert model.bias.grad.untyped_storage().data_ptr() == model.weight.grad.untyped_storage().data_ptr()


def _lazy() -> object:
    return nn.LazyLinear(3)


def _half_conjugate() -> object:
    return {"w": torch.ones(8, dtype=torch.complex64).conj()}


def _half_negative() -> object:
    return {"w": torch.ones(8, dtype=torch.complex64).conj().imag}


def _twice_named() -> object:
    return {"a.b": torch.ones(8), "a": {"b": torch.zeros(8)}}


def _twice_there() -> object:
    numbers = np.arange(10.0)
    return {"head": torch.from_numpy(numbers[:3]), "all": torch.from_numpy(numbers)}


def _wrapping() -> object:
    return {"w": TwoTensor(torch.ones(8), torch.ones(8))}  # type: ignore[no-untyped-call]


def _partitioned() -> object:
    """As DeepSpeed leaves a parameter, beside a buffer as it was."""
    module = nn.BatchNorm1d(3)
    module.weight.data = torch.empty(0)
    vars(module.weight)["ds_tensor"] = torch.ones(3)
    return module


def _quantised() -> object:
    weight = nn.Parameter(torch.ones(8, dtype=torch.uint8), requires_grad=False)
    vars(weight)["quant_state"] = object()
    return nn.ParameterDict({"weight": weight})


class Int8Params(nn.Parameter):
    """As bitsandbytes has it once its module has computed: nothing of its scales is left on it."""

    CB = SCB = None


def _quantised_to_8_bits() -> object:
    return nn.ParameterDict({"weight": Int8Params(torch.ones(8, dtype=torch.int8), requires_grad=False)})


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (_lazy, "no shape yet"),
        (_half_conjugate, "yet to be negated"),
        (_half_negative, "yet to be negated"),
        (_twice_named, r"called 'a\.b'"),
        (_twice_there, "'head' and 'all' have memory in common"),
        (_wrapping, "w is a TwoTensor, which wraps .* `to_local.*`fully_shard` made keeps views"),
        (_partitioned, r"weight is partitioned by DeepSpeed.*offload_states\(\)"),
        (_quantised, "weight is quantised by bitsandbytes, and its `quant_state` would stay"),
        (_quantised_to_8_bits, r"weight is quantised by bitsandbytes, and its scales would stay; .* `to\(\)`"),
    ],
)
def test_what_would_come_back_wrong_is_refused(state: object, said: str, budget: Budget) -> None:
    with pytest.raises(Unfit, match=said):
        Resident(state(), name="a", budget=budget)  # type: ignore[operator]
    assert budget.holdings() == ()


def test_state_that_has_become_empty_is_refused_and_takes_no_more_room(budget: Budget) -> None:
    state = some()
    resident = Resident(state, name="a", budget=budget)
    resident.offload()
    resident.load()
    there = {path.name for path in budget.folder.iterdir()}
    kept = state.pop("w")
    with pytest.raises(Unfit, match="holds no tensor"):
        resident.offload()
    assert {path.name for path in budget.folder.iterdir()} == there
    state["w"] = kept
    resident.offload()


def test_an_error_of_rebuild_is_heard_though_it_looks_at_the_state(budget: Budget) -> None:
    state = some()

    def rebuild() -> None:
        view = state["w"][:3]
        raise OSError(f"no checkpoint for {view.numel()}")

    resident = Resident(state, name="a", budget=budget, rebuild=rebuild)
    resident.offload()
    resident.drop()
    with pytest.raises(OSError, match="no checkpoint") as error:
        resident.load()
    assert "still hold" in error.value.__notes__[0]


@pytest.mark.parametrize("end", ["raise RuntimeError('boom')", "sys.exit(1)"])
def test_state_survives_a_process_that_ends_without_closing_it(end: str, budget: Budget) -> None:
    """An error keeps the function's variables to the end of the process; with `sys.exit` they go before it."""
    source = f"""
        import sys, torch
        from pathlib import Path
        from rollmux.runtime.residency import Budget, Resident
        def main():
            state = {{"w": torch.full((100_000,), 9.0)}}
            kept = Resident(state, name="a", budget=Budget(Path(sys.argv[1]), {budget.limit_bytes}), survive_s=60)
            lost = Resident({{"w": torch.ones(9)}}, name="b", budget=Budget(Path(sys.argv[1]), {budget.limit_bytes}))
            kept.offload(), lost.offload()
            {end}
        main()
    """
    command = [sys.executable, "-c", textwrap.dedent(source), str(budget.folder)]
    assert subprocess.run(command, cwd=ROOT / "src", capture_output=True, check=False).returncode == 1
    assert [holding.name for holding in budget.holdings()] == ["a"]
    state = some()
    Resident.attach(state, name="a", budget=budget).load()
    assert torch.equal(state["w"], torch.full((100_000,), 9.0))


def test_what_was_left_by_a_process_that_died_while_its_state_grew_is_cleared_away(budget: Budget) -> None:
    resident = Resident(some(), name="a", budget=budget, survive_s=60)
    resident.offload()
    assert resident.kept is not None
    needed = budget.holdings()[0].nbytes
    resident.kept._claim.resize(needed + MB)
    budget.state_path("a").with_suffix(".new").write_bytes(bytes(MB))
    resident.close(keep=True)
    again = Resident.attach(some(), name="a", budget=budget)
    assert budget.holdings()[0].nbytes == needed
    assert not budget.state_path("a").with_suffix(".new").exists()
    again.close()


def test_a_visitor_without_tensors_is_refused() -> None:
    with pytest.raises(Unfit, match="holds no tensor"):
        Visitor(dict, name="a", memory=CpuMemory())


def test_who_shares_a_copy_reads_the_notes_of_the_version_that_it_is_told(budget: Budget) -> None:
    owner = Resident(some(), name="a", budget=budget, read_only=True, shared=True)
    owner.offload(b"first")
    reader = Resident.attach(some(), name="a", budget=budget, read_only=True, shared=True)
    owner.update({"w": torch.zeros(100_000)}, b"second")
    assert (reader.version, reader.notes) == (2, b"second")
