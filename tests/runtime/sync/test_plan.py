"""Plans: who gives which part of which tensor to whom."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollmux.errors import InvalidSpec
from rollmux.runtime.sync import Exchange, Layout, Place, Plan, Side, TensorSpec, make_plan
from rollmux.runtime.sync.layout import ITEM_BYTES, Box, elements
from rollmux.runtime.sync.plan import chunks
from tests.runtime.sync.models import side, small


@st.composite
def tensors(draw: st.DrawFn) -> tuple[TensorSpec, ...]:
    shapes = draw(st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=4))
    dtypes = st.sampled_from(sorted(ITEM_BYTES))
    return tuple(TensorSpec(f"t{place}", draw(dtypes), tuple(shape)) for place, shape in enumerate(shapes))


@st.composite
def sides(draw: st.DrawFn, found: tuple[TensorSpec, ...], clusters: int) -> Side:
    split = {}
    for tensor in found:
        dim = draw(st.none() | st.integers(0, len(tensor.shape) - 1)) if tensor.shape else None
        if dim is not None:
            split[tensor.name] = dim
    layout = Layout(draw(st.integers(1, 4)), draw(st.integers(1, 3)), split)
    places = [Place(str(draw(st.integers(1, clusters))), f"n{rank}") for rank in range(layout.ranks)]
    return Side(layout, tuple(places))


@st.composite
def exchanges(draw: st.DrawFn, clusters: int = 3) -> Exchange:
    found = draw(tensors())
    senders, receivers = draw(sides(found, 1)), draw(sides(found, clusters))
    return Exchange(found, senders, receivers, draw(st.integers(64, 300)))


def counted(tensor: TensorSpec, boxes: list[Box]) -> NDArray[np.int64]:
    """How often each element lies in one of the boxes."""
    times = np.zeros(tensor.shape, np.int64)
    for box in boxes:
        times[tuple(slice(*bounds) for bounds in box)] += 1
    return times


def crossing_bytes(plan: Plan) -> int:
    return sum(piece.nbytes for piece in plan.pieces)


@given(exchanges())
def test_every_byte_of_a_receivers_part_comes_to_it_in_exactly_one_piece(exchange: Exchange) -> None:
    plan = make_plan(exchange)
    for rank in exchange.receivers.ranks:
        for tensor in exchange.tensors:
            got = [plan.pieces[index].box for index in plan.taken(rank) if plan.pieces[index].tensor is tensor]
            part = exchange.receivers.layout.box(tensor, rank)
            assert (counted(tensor, got) == counted(tensor, [part] if elements(part) else [])).all()


@given(exchanges())
def test_a_sender_gives_only_what_it_owns_and_pieces_are_no_longer_than_a_chunk(exchange: Exchange) -> None:
    for piece in make_plan(exchange).pieces:
        owned = exchange.senders.layout.box(piece.tensor, piece.sender)
        assert all(low <= start < stop <= high for (start, stop), (low, high) in zip(piece.box, owned, strict=True))
        assert piece.nbytes <= max(exchange.chunk_bytes, piece.tensor.item_bytes)


@given(exchanges())
def test_each_byte_crosses_once_into_each_cluster_that_needs_it(exchange: Exchange) -> None:
    plan = make_plan(exchange)
    for tensor in exchange.tensors:
        for cluster in {place.cluster for place in exchange.receivers.places}:
            inside = {rank for rank in exchange.receivers.ranks if exchange.receivers.places[rank].cluster == cluster}
            crossing = [piece.box for piece in plan.pieces if piece.tensor is tensor and piece.first in inside]
            parts = {exchange.receivers.layout.box(tensor, rank) for rank in inside}
            needed = counted(tensor, [box for box in parts if elements(box)])
            assert (counted(tensor, crossing) == needed).all()


@given(exchanges(clusters=1))
def test_one_cluster_gets_the_model_once_however_many_ranks_it_has(exchange: Exchange) -> None:
    assert crossing_bytes(make_plan(exchange)) == exchange.model_bytes


@given(exchanges())
def test_pieces_are_shared_within_a_cluster_alone(exchange: Exchange) -> None:
    places = exchange.receivers.places
    for piece in make_plan(exchange).pieces:
        assert piece.first not in piece.shared
        assert {places[rank].cluster for rank in piece.shared} <= {places[piece.first].cluster}


@given(exchanges())
def test_what_is_given_shared_and_taken_are_the_same_pieces(exchange: Exchange) -> None:
    plan = make_plan(exchange)
    sent = Counter((to, index) for s in exchange.senders.ranks for to, each in plan.given(s).items() for index in each)
    sent += Counter(
        (to, index) for r in exchange.receivers.ranks for to, each in plan.shared(r).items() for index in each
    )
    assert sent == Counter((rank, index) for rank in exchange.receivers.ranks for index in plan.taken(rank))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 6))
def test_replicas_share_the_work_evenly(tp: int, dp: int, receivers: int) -> None:
    found = (TensorSpec("w", "F32", (48, 64)), TensorSpec("n", "F32", (640,)))
    exchange = Exchange(found, side(tp, dp, {"w": 0}, "a"), side(1, receivers, {}, "b"), 256)
    plan = make_plan(exchange)
    gives = [sum(plan.pieces[i].nbytes for each in plan.given(rank).values() for i in each) for rank in range(tp * dp)]
    gets = [sum(p.nbytes for p in plan.pieces if p.first == rank) for rank in range(receivers)]
    assert max(gives) - min(gives) <= 2 * exchange.chunk_bytes
    assert max(gets) - min(gets) <= exchange.chunk_bytes


@given(st.integers(1, 4), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.data())
def test_parts_are_cut_as_torch_cuts(tp: int, shape: list[int], data: st.DataObject) -> None:
    dim = data.draw(st.integers(0, len(shape) - 1))
    tensor = TensorSpec("w", "I64", tuple(shape))
    values = torch.arange(math.prod(shape)).reshape(shape)
    cut = list(values.chunk(tp, dim))
    for rank in range(tp):
        box = Layout(tp, 1, {"w": dim}).box(tensor, rank)
        part = values[tuple(slice(*bounds) for bounds in box)]
        assert torch.equal(part, cut[rank]) if rank < len(cut) else part.numel() == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=4), st.integers(1, 50))
def test_chunks_cover_a_box_once_and_are_no_longer_than_allowed(spans: list[tuple[int, int]], most: int) -> None:
    box = tuple((start, start + length) for start, length in spans)
    found = list(chunks(box, most))
    tensor = TensorSpec("w", "U8", tuple(stop for _, stop in box))
    assert (counted(tensor, found) == counted(tensor, [box])).all()
    assert all(1 <= elements(each) <= most for each in found)


def test_a_flat_broadcast_crosses_once_for_each_receiver_and_shares_nothing() -> None:
    plan = small(receivers=(1, 3))
    exchange = plan.exchange
    flat = make_plan(Exchange(exchange.tensors, exchange.senders, exchange.receivers, 1024, two_stage=False))
    assert crossing_bytes(flat) == 3 * crossing_bytes(plan)
    assert not any(piece.shared for piece in flat.pieces)
    assert flat.fingerprint != plan.fingerprint


def test_the_same_exchange_makes_the_same_plan() -> None:
    assert small() == small()
    assert small().fingerprint != small(chunk_bytes=2048).fingerprint


def test_all_that_is_wrong_with_an_exchange_is_told_at_once() -> None:
    found = (TensorSpec("w", "F32", (4, 4)), TensorSpec("w", "F32", (4,)))
    short = Side(Layout(2, 1, {"w": 3, "x": 0}), (Place("a", "n"),))
    with pytest.raises(InvalidSpec) as caught:
        Exchange(found, short, side(1, 1, {}, "b"), chunk_bytes=1)
    paths = {problem.path for problem in caught.value.problems}
    assert paths == {
        "exchange.chunk_bytes", "exchange.tensors", "exchange.senders.places", "exchange.senders.split['w']",
        "exchange.senders.split['x']",
    }  # fmt: skip


def test_a_layout_that_no_ranks_can_have_is_refused_with_all_reasons() -> None:
    with pytest.raises(InvalidSpec) as caught:
        Layout(0, True, {"w": -1})
    assert [problem.path for problem in caught.value.problems] == ["layout.tp", "layout.dp", "layout.split['w']"]


def test_a_tensor_of_an_unknown_type_or_shape_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="safetensors"):
        TensorSpec("w", "float32", (3,))
    with pytest.raises(InvalidSpec, match="shape"):
        TensorSpec("w", "F32", (-1,))
