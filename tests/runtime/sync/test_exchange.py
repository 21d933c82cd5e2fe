"""Whole exchanges over real sockets: what lands, what is skipped, what is sent as a delta."""

import gc
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.testing._internal.two_tensor import TwoTensor

from rollmux.errors import InvalidSpec
from rollmux.runtime.sync import Exchange, Layout, Place, Receiver, Sender, Side, SyncFailed, make_plan
from rollmux.runtime.sync.tensors import as_torch, from_torch, spec_of
from tests.ports import HAS_IPV6
from tests.runtime.sync.models import (
    PATIENCE_S,
    TENSORS,
    TOKEN,
    World,
    filling,
    holds,
    on_tcp,
    side,
    small,
    whole,
    world,
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    senders=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    receivers=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    dims=st.tuples(st.integers(0, 1), st.integers(0, 1)),
)
def test_resharded_tensors_are_what_torch_would_cut(
    tmp_path: Path, senders: tuple[int, int], receivers: tuple[int, int], dims: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    model = {"w": torch.randn(30, 18), "v": torch.randn(18, 30).to(torch.bfloat16), "n": torch.randn(31)}
    theirs = side(*senders, {"w": dims[0], "v": 1}, "train")
    ours = side(*receivers, {"w": dims[1], "v": 0, "n": 0}, "roll")
    plan = make_plan(Exchange(tuple(spec_of(*item) for item in model.items()), theirs, ours, 256))
    with world(plan, tmp_path) as made:
        for sender in made.senders:
            column = sender.rank % senders[0]
            cut = {"w": dims[0], "v": 1}
            sender.publish(7, from_torch(plan, {
                name: tensor.chunk(senders[0], cut[name])[column] if name in cut else tensor
                for name, tensor in model.items()
            }))  # fmt: skip
        made.sync(1)
        for receiver in made.receivers:
            column = receiver.rank % receivers[0]
            with receiver.read() as weights:
                for name, dim in {"w": dims[1], "v": 0, "n": 0}.items():
                    assert torch.equal(as_torch(weights)[name], model[name].chunk(receivers[0], dim)[column])


def replicated(made: World, version: int, changed_by: float = 1.0) -> None:
    made.publish(version, whole(made.plan, version, changed_by))


def test_versions_follow_one_another_and_each_is_served_whole(tmp_path: Path) -> None:
    with world(small(senders=(2, 2), receivers=(2, 2)), tmp_path) as made:
        for version in range(1, 5):
            replicated(made, version)
            tally = made.sync(version)
            assert tally.piece_bytes == made.plan.exchange.model_bytes
            assert made.serve(whole(made.plan, version))
            assert [receiver.held and receiver.held.version for receiver in made.receivers] == [version] * 4


def test_receivers_of_two_clusters_get_one_copy_each(tmp_path: Path) -> None:
    plan = small(receivers=(1, 4))
    ours = plan.exchange.receivers
    places = tuple(Place(f"roll{rank % 2}", place.node) for rank, place in enumerate(ours.places))
    two = make_plan(Exchange(TENSORS, plan.exchange.senders, Side(ours.layout, places), 1024))
    with world(two, tmp_path) as made:
        replicated(made, 1)
        assert made.sync(1).piece_bytes == 2 * plan.exchange.model_bytes
        assert made.serve(whole(two, 1))


def test_what_has_not_changed_is_not_sent(tmp_path: Path) -> None:
    with world(small(chunk_bytes=4096), tmp_path) as made:
        replicated(made, 1)
        made.sync(1)
        model = dict(whole(made.plan, 1))
        model["norm"] = model["norm"] + 1
        made.publish(2, model)
        tally = made.sync(2)
        assert (tally.plain, tally.kept) == (1, len(made.plan.pieces) - 1)
        assert made.serve(model)
        made.publish(3, model)
        assert made.sync(3).plain == 0
        assert made.serve(model)


def test_a_small_change_crosses_as_a_delta_and_lands_whole(tmp_path: Path) -> None:
    with world(small(), tmp_path, delta=True) as made:
        for version in range(1, 5):
            replicated(made, version, changed_by=0.02)
            tally = made.sync(version)
            assert made.serve(whole(made.plan, version, changed_by=0.02))
        assert tally.plain == 0
        assert tally.delta > 0
        assert tally.sent_bytes < 0.15 * tally.piece_bytes


def test_without_a_version_before_a_delta_sender_sends_all(tmp_path: Path) -> None:
    with world(small(), tmp_path, delta=True) as made:
        replicated(made, 1, changed_by=0.02)
        assert made.sync(1).plain == len(made.plan.pieces)
        made.senders[1].close()
        made.senders[1] = Sender(made.plan, 1, tmp_path / "fresh", TOKEN, delta=True)
        replicated(made, 2, changed_by=0.02)
        assert made.sync(2).plain > 0
        assert made.serve(whole(made.plan, 2, changed_by=0.02))


def test_float32_lands_as_bfloat16_with_torchs_own_rounding(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = {"w": torch.randn(50, 40), "ids": torch.arange(40)}
    tensors = tuple(spec_of(name, tensor, torch.bfloat16) for name, tensor in model.items())
    plan = make_plan(Exchange(tensors, side(2, 1, {"w": 0}, "a"), side(1, 2, {}, "b"), 1024))
    with world(plan, tmp_path) as made:
        for sender in made.senders:
            sender.publish(1, from_torch(plan, {"w": model["w"].chunk(2)[sender.rank], "ids": model["ids"]}))
        assert made.sync(1).piece_bytes == 50 * 40 * 2 + 40 * 8
        for receiver in made.receivers:
            with receiver.read() as weights:
                assert torch.equal(as_torch(weights)["w"], model["w"].to(torch.bfloat16))
                assert torch.equal(as_torch(weights)["ids"], model["ids"])


def test_a_shard_of_the_wrong_shape_is_refused_by_name(tmp_path: Path) -> None:
    plan = make_plan(Exchange(TENSORS, side(1, 1, {}, "a"), side(1, 1, {}, "b")))
    with world(plan, tmp_path) as made, pytest.raises(InvalidSpec, match=r"up = .*96, 40"):
        made.senders[0].publish(1, from_torch(plan, {"up": torch.zeros(3, 3)}))


def test_a_shard_that_wraps_others_is_refused_whatever_its_shape(tmp_path: Path) -> None:
    """As a DTensor does: of a rank alone it has the right shape, and torch won't mix it with what lands."""
    plan = make_plan(Exchange(TENSORS, side(1, 1, {}, "a"), side(1, 1, {}, "b")))
    wrapping = TwoTensor(torch.zeros(96, 40), torch.zeros(96, 40))  # type: ignore[no-untyped-call]
    with (
        world(plan, tmp_path) as made,
        pytest.raises(InvalidSpec, match=r"up = 'TwoTensor of .* must be Tensor of .*`to_local\(\)`"),
    ):
        made.senders[0].publish(1, from_torch(plan, {"up": wrapping}))


def test_ranks_of_one_node_pass_pieces_by_shared_memory(tmp_path: Path) -> None:
    plan = small(receivers=(2, 2))
    one = Place("roll", "node")
    theirs = Side(plan.exchange.senders.layout, (one,) * 2)
    ours = Side(plan.exchange.receivers.layout, (one,) * 4)
    same = make_plan(Exchange(TENSORS, theirs, ours, 1024))
    with world(same, tmp_path, listen=lambda rank: [f"unix://{tmp_path}/{rank}.socket"], delta=True) as made:
        for version in range(1, 4):
            replicated(made, version, changed_by=0.02)
            tally = made.sync(version)
            assert made.serve(whole(same, version, changed_by=0.02))
        assert tally.delta > 0
    gc.collect()
    assert not opened_in(tmp_path), "the files of givers are closed with their connections"


def opened_in(folder: Path) -> list[Path]:
    """The files of the folder that this process has open."""
    opened = [file for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]  # not that of the listing itself
    return [file.readlink() for file in opened if file.readlink().is_relative_to(folder)]


@pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")
@pytest.mark.parametrize("address", ["tcp://[::1]:0", "tcp://::1:0"])
def test_weights_cross_by_ipv6(address: str, tmp_path: Path) -> None:
    with world(small(), tmp_path, listen=lambda _: [address]) as made:
        replicated(made, 1)
        made.sync(1)
        assert made.serve(whole(made.plan, 1))


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("scheme", ["tcp", "unix"])
def test_weights_cross_on_a_system_that_has_less(scheme: str, tmp_path: Path) -> None:
    one = Place("one", "node")
    here = Side(Layout(1), (one,))
    plan = make_plan(Exchange(TENSORS, here, here, 1024))
    address = "tcp://127.0.0.1:0" if scheme == "tcp" else f"unix://{tmp_path}/socket"
    with world(plan, tmp_path, listen=lambda _: [address], delta=True) as made:
        for version in (1, 2):
            replicated(made, version, changed_by=0.02)
            made.sync(version)
            assert made.serve(whole(plan, version, changed_by=0.02))


def test_who_reads_a_version_keeps_it_until_it_is_closed(tmp_path: Path) -> None:
    with world(small(), tmp_path) as made:
        replicated(made, 1)
        made.sync(1)
        first = made.receivers[0].read()
        replicated(made, 2)
        made.sync(2)
        receiver = made.receivers[0]
        receiver._patience_s = 0.1
        before = {name: words.copy() for name, words in first.words.items()}
        replicated(made, 3)
        with pytest.raises(SyncFailed, match="still read"):
            made.sync(3)
        assert all((words == before[name]).all() for name, words in first.words.items())
        assert made.serve(whole(made.plan, 2))
        first.close()
        made.sync(4)
        assert made.serve(whole(made.plan, 3))


def test_an_engine_that_writes_to_its_weights_changes_its_own_copy(tmp_path: Path) -> None:
    with world(small(), tmp_path) as made:
        replicated(made, 1)
        made.sync(1)
        with made.receivers[0].read() as weights:
            weights.words["norm"][...] = 0
            assert holds(made.plan, made.receivers[0], whole(made.plan, 1))


def test_another_plan_takes_over_a_folder_and_the_old_version_is_there_until_then(tmp_path: Path) -> None:
    old, new = small(), small(chunk_bytes=512)
    made = World(old, tmp_path, False, on_tcp)
    replicated(made, 1)
    made.sync(1)
    made.close()
    again = World(new, tmp_path, False, on_tcp)
    try:
        assert [receiver.held and receiver.held.plan for receiver in again.receivers] == [old.fingerprint] * 2
        replicated(again, 2)
        again.sync(2)
        assert again.serve(whole(new, 2))
    finally:
        again.close()


def test_one_process_at_a_time_writes_to_a_folder(tmp_path: Path) -> None:
    with world(small(), tmp_path) as made, pytest.raises(SyncFailed, match="another process"):
        Receiver(made.plan, 0, made.receivers[0].folder, TOKEN, ["tcp://127.0.0.1:0"])


def test_nothing_is_sent_before_it_was_published(tmp_path: Path) -> None:
    with world(small(), tmp_path) as made:
        with pytest.raises(SyncFailed, match="publish one first"):
            made.senders[0].sync(1, made.addresses)
        with pytest.raises(SyncFailed, match="no version yet"):
            made.receivers[0].read()


@pytest.mark.parametrize(("senders", "receivers"), [(1, 2), (2, 1), (2, 3)])
def test_pieces_that_are_one_element_wide_land_in_wider_shards(tmp_path: Path, senders: int, receivers: int) -> None:
    model = {"w": torch.randn(16, 3).to(torch.bfloat16)}
    spec = (spec_of("w", model["w"]),)
    plan = make_plan(Exchange(spec, side(senders, 1, {"w": 1}, "train"), side(receivers, 1, {"w": 1}, "roll"), 64))
    with world(plan, tmp_path) as made:
        for sender in made.senders:
            box = plan.exchange.senders.layout.box(spec[0], sender.rank)
            sender.publish(1, from_torch(plan, {"w": model["w"][tuple(slice(*each) for each in box)]}))
        made.sync(1)
        for receiver in made.receivers:
            box = plan.exchange.receivers.layout.box(spec[0], receiver.rank)
            with receiver.read() as weights:
                weights.verify()
                assert torch.equal(as_torch(weights)["w"], model["w"][tuple(slice(*each) for each in box)])


def test_the_same_epoch_and_version_of_another_plan_are_refused(tmp_path: Path) -> None:
    made = World(small(), tmp_path, False, on_tcp)
    replicated(made, 1)
    made.sync(1)
    made.close()
    again = World(small(chunk_bytes=512), tmp_path, False, on_tcp)
    try:
        replicated(again, 1)
        with pytest.raises(SyncFailed, match="of another plan: take a new one"):
            again.sync(1)
        again.sync(2)
        assert again.serve(whole(again.plan, 1))
    finally:
        again.close()


def test_addresses_of_too_many_are_refused(tmp_path: Path) -> None:
    with world(small(senders=(1, 1)), tmp_path) as made:
        replicated(made, 1)
        addresses = [receiver.addresses for receiver in made.receivers]
        with pytest.raises(SyncFailed, match="addresses of 3 receivers"):
            made.senders[0].sync(1, [*addresses, addresses[0]])


def test_a_second_receiver_does_not_take_the_address_of_one_that_lives(tmp_path: Path) -> None:
    plan = small(senders=(1, 1), receivers=(1, 1))
    address = f"unix://{tmp_path}/socket"
    first = Receiver(plan, 0, tmp_path / "first", TOKEN, [address])
    with pytest.raises(SyncFailed, match="somebody listens"):
        Receiver(plan, 0, tmp_path / "second", TOKEN, [address])
    first.close()
    Receiver(plan, 0, tmp_path / "second", TOKEN, [address]).close()


def test_ranks_of_one_node_whose_socket_can_t_be_reached_are_called_by_tcp(tmp_path: Path) -> None:
    one = Place("one", "node")
    here = Side(Layout(1), (one,))
    plan = make_plan(Exchange(TENSORS, here, here))
    with world(plan, tmp_path, listen=lambda _: [f"unix://{tmp_path}/socket", "tcp://127.0.0.1:0"]) as made:
        (tmp_path / "socket").unlink()
        replicated(made, 1)
        made.sync(1)
        assert made.serve(whole(plan, 1))
        gone = made.receivers[0].addresses
        made.receivers[0].close()
        with pytest.raises(SyncFailed, match=r"unix://.* can't be reached: .*; tcp://.* can't be reached"):
            made.senders[0].sync(2, [gone])


def test_a_receiver_at_a_socket_may_be_closed_twice_and_leaves_the_next_one_s_alone(tmp_path: Path) -> None:
    plan, address = small(senders=(1, 1), receivers=(1, 1)), f"unix://{tmp_path}/socket"
    first = Receiver(plan, 0, tmp_path / "first", TOKEN, [address])
    first.close()
    second = Receiver(plan, 0, tmp_path / "second", TOKEN, [address])
    first.close()
    assert (tmp_path / "socket").exists()
    second.close()


@pytest.mark.parametrize("scheme", ["tcp", "unix"])
def test_a_receiver_that_is_closed_listens_no_more(scheme: str, tmp_path: Path) -> None:
    address = "tcp://127.0.0.1:0" if scheme == "tcp" else f"unix://{tmp_path}/socket"
    receiver = Receiver(small(senders=(1, 1), receivers=(1, 1)), 0, tmp_path / "mine", TOKEN, [address])
    (listens,) = (each for each in threading.enumerate() if each.name == f"sync {receiver.addresses[0]}")
    receiver.close()
    listens.join(PATIENCE_S)
    assert not listens.is_alive()


def test_what_is_closed_twice_closes_nothing_of_others(tmp_path: Path) -> None:
    with world(small(senders=(1, 1), receivers=(1, 1)), tmp_path) as made:
        replicated(made, 1)
        made.sync(1)
        weights = made.receivers[0].read()
        closing = (weights, made.senders[0], made.receivers[0])
        for each in closing:
            each.close()
        with (tmp_path / "mine").open("w") as mine, (tmp_path / "another").open("w") as another:
            for each in closing:
                each.close()
            mine.write("mine"), another.write("another")


def test_what_is_closed_writes_nothing_into_a_folder_that_is_another_s_by_now(tmp_path: Path) -> None:
    plan = small(senders=(1, 1), receivers=(1, 1))
    with world(plan, tmp_path) as made:
        replicated(made, 1)
        closed = made.senders[0]
        closed.close()
        made.senders[0] = Sender(plan, 0, closed._shelf.folder, TOKEN)
        replicated(made, 2)
        fill = filling(plan, plan.exchange.senders, 0, whole(plan, 3))
        for late in (lambda: closed.publish(3, fill), lambda: closed.sync(3, made.addresses)):
            with pytest.raises(SyncFailed, match="is closed"):
                late()
        made.sync(4)
        assert made.serve(whole(plan, 2))


@pytest.mark.parametrize("number", [2.5, "3", -1, np.float64(2)])
def test_a_version_or_an_epoch_that_is_no_whole_number_is_refused_before_anything_changes(
    tmp_path: Path, number: Any
) -> None:
    with world(small(senders=(1, 1), receivers=(1, 1)), tmp_path) as made:
        replicated(made, 1)
        with pytest.raises(InvalidSpec, match=r"sync\.version"):
            made.senders[0].publish(number, lambda _name, _words: None)
        with pytest.raises(InvalidSpec, match=r"sync\.epoch"):
            made.senders[0].sync(number, made.addresses)
        made.sync(1)
        assert made.serve(whole(made.plan, 1))


def test_a_folder_is_free_once_its_writer_is_closed_though_a_child_was_forked_meanwhile(tmp_path: Path) -> None:
    plan = small(senders=(1, 1))
    sender = Sender(plan, 0, tmp_path / "mine", TOKEN)
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        sender.close()
        Sender(plan, 0, tmp_path / "mine", TOKEN).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_folder_that_has_no_room_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, at: int, nbytes: int) -> None:
        if Path(f"/proc/self/fd/{file}").readlink().name.endswith("-1"):
            raise OSError(28, "no space left")
        os.ftruncate(file, at + nbytes)

    monkeypatch.setattr(os, "posix_fallocate", full)
    for _ in range(2):
        with pytest.raises(OSError, match="no space"):
            Receiver(small(senders=(1, 1)), 0, tmp_path / "mine", TOKEN, ["tcp://127.0.0.1:0"])
    gc.collect()
    assert not opened_in(tmp_path)


def test_a_type_that_is_not_sent_is_refused_by_name() -> None:
    with pytest.raises(InvalidSpec, match="complex64"):
        spec_of("w", torch.ones(2, dtype=torch.complex64))
