"""What must not be believed: damaged bytes, old epochs, strangers, messages out of place. Nothing of it is served."""

import logging
import os
import socket
import struct
import time
from collections.abc import Callable
from concurrent import futures
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgspec
import pytest

from rollmux.errors import InvalidSpec
from rollmux.runtime.sync import (
    Exchange,
    HalfServed,
    Mark,
    Receiver,
    Refused,
    Sender,
    SyncFailed,
    door,
    lead,
    make_plan,
    receive,
    round,
    send,
)
from rollmux.runtime.sync.channel import Channel
from rollmux.runtime.sync.errors import Broken, Silent
from rollmux.runtime.sync.generation import NO_DIGEST
from rollmux.runtime.sync.lead import Lead
from rollmux.runtime.sync.round import Round
from rollmux.runtime.sync.transports.inline import Inline
from rollmux.runtime.sync.transports.sockets import call
from rollmux.runtime.sync.wire import (
    HEADER_BYTES,
    MAX_GREETING_BYTES,
    Begin,
    Begun,
    Challenge,
    Flip,
    Flipped,
    Header,
    Hello,
    Kind,
    Proof,
    Status,
    Welcome,
    Whole,
)
from tests.runtime.sync.models import PATIENCE_S, TENSORS, TOKEN, World, holds, side, small, whole, world


def publish(made: World, version: int) -> None:
    made.publish(version, whole(made.plan, version))


class Relay:
    """Passes bytes on between a caller and an address, and changes what goes to the address."""

    def __init__(self, address: str, change: Callable[[bytes, int], bytes]) -> None:
        self._to, self._change, self.passed = address, change, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            host, _, port = self._to.removeprefix("tcp://").rpartition(":")
            far = socket.create_connection((host, int(port)))
            Thread(target=self._pump, args=(near, far, True), daemon=True).start()
            Thread(target=self._pump, args=(far, near, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, forth: bool) -> None:
        try:
            while got := source.recv(65536):
                sink.sendall(self._change(got, self.passed) if forth else got)
                self.passed += len(got) if forth else 0
        except OSError:
            pass
        finally:
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            source.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.mark.parametrize("at", [3_000, 6_000, 10_000])
def test_a_byte_that_changes_on_the_way_is_noticed_and_never_served(tmp_path: Path, at: int) -> None:
    with world(small(senders=(1, 1), receivers=(1, 1)), tmp_path) as made:
        publish(made, 1)
        made.sync(1)
        publish(made, 2)

        def damage(got: bytes, passed: int) -> bytes:
            place = at - passed
            return got[:place] + bytes([got[place] ^ 4]) + got[place + 1 :] if 0 <= place < len(got) else got

        relay = Relay(made.receivers[0].addresses[0], damage)
        with pytest.raises(SyncFailed):
            made.senders[0].sync(2, [(relay.address,)])
        relay.close()
        assert made.serve(whole(made.plan, 1))
        tally = made.sync(3)
        assert made.serve(whole(made.plan, 2))
        assert tally.kept > 0, "what had landed before the damage is not sent again"


def test_an_older_epoch_changes_nothing(tmp_path: Path) -> None:
    with world(small(), tmp_path) as made:
        publish(made, 1)
        made.sync(5)
        publish(made, 2)
        with pytest.raises(Refused, match="epoch 4 is over: there has been epoch 5"):
            made.senders[0].sync(4, made.addresses)
        assert made.serve(whole(made.plan, 1))
        made.sync(6)
        assert made.serve(whole(made.plan, 2))


def test_an_epoch_is_remembered_by_the_next_process(tmp_path: Path) -> None:
    made = World(small(), tmp_path, False, lambda _: ["tcp://127.0.0.1:0"])
    publish(made, 1)
    made.sync(5)
    made.close()
    again = World(small(), tmp_path, False, lambda _: ["tcp://127.0.0.1:0"])
    try:
        assert again.serve(whole(again.plan, 1))
        with pytest.raises(Refused, match="epoch 4 is over"):
            again.senders[0].sync(4, again.addresses)
    finally:
        again.close()


def test_an_attempt_that_is_repeated_after_its_commit_changes_nothing(tmp_path: Path) -> None:
    with world(small(), tmp_path) as made:
        publish(made, 1)
        made.sync(5)
        before = [(receiver.held, (receiver.folder / "held").stat().st_mtime_ns) for receiver in made.receivers]
        assert made.sync(5).piece_bytes == 0
        assert before == [(each.held, (each.folder / "held").stat().st_mtime_ns) for each in made.receivers]


def test_a_receiver_that_lost_what_an_attempt_committed_is_filled_by_a_new_one(tmp_path: Path) -> None:
    with world(small(), tmp_path) as made:
        publish(made, 1)
        made.sync(5)
        folder = made.receivers[1].folder
        made.receivers[1].close(keep=False)
        made.receivers[1] = Receiver(made.plan, 1, folder, TOKEN, ["tcp://127.0.0.1:0"])
        with pytest.raises(Refused, match="epoch 5 was committed, and receiver 1 has lost it: take a new one"):
            made.senders[0].sync(5, made.addresses)
        made.sync(6)
        assert made.serve(whole(made.plan, 1))


def test_an_epoch_brings_one_version(tmp_path: Path) -> None:
    with world(small(), tmp_path) as made:
        publish(made, 1)
        made.sync(5)
        publish(made, 2)
        with pytest.raises(Refused, match="epoch 5 has brought version 1"):
            made.senders[0].sync(5, made.addresses)
        assert made.serve(whole(made.plan, 1))


def test_a_receiver_that_was_not_told_to_flip_is_told_by_the_next_leader(tmp_path: Path) -> None:
    with world(small(), tmp_path) as made:
        publish(made, 1)
        made.sync(1)
        publish(made, 2)
        made.sync(2)
        late = made.receivers[1]
        late.close()
        for name, version, epoch, generation in (("held", 1, 1, 0), ("ready", 2, 2, 1)):
            mark = Mark(version, epoch, generation, made.plan.fingerprint)
            (late.folder / name).write_bytes(msgspec.json.encode(mark))
        made.receivers[1] = again = Receiver(made.plan, 1, late.folder, TOKEN, ["tcp://127.0.0.1:0"])
        assert holds(made.plan, again, whole(made.plan, 1))
        leading = Lead(made.plan, 3, 3, TOKEN.encode(), 10)
        assert leading.begin(made.addresses)
        assert holds(made.plan, again, whole(made.plan, 2))
        leading.close()


def test_another_token_opens_nothing_and_is_not_told_on_either_side(tmp_path: Path) -> None:
    with world(small(), tmp_path) as made:
        publish(made, 1)
        made.sync(1)
        stranger = Sender(made.plan, 0, tmp_path / "stranger", "another token, long", patience_s=5)
        stranger.publish(9, lambda _name, _words: None)
        with pytest.raises(Refused, match="another token"):
            stranger.sync(9, made.addresses)
        assert made.serve(whole(made.plan, 1))
        assert made.receivers[0]._shelf.epoch == 1
        stranger.close()


def test_a_listener_that_does_not_know_the_token_is_given_nothing() -> None:
    near, far = socket.socketpair()
    caller, impostor = Channel(near, Inline(), 5), Channel(far, Inline(), 5)
    hello = Hello("give", "sender", 0, 1, 1, "plan", door.nonce())

    def lie() -> None:
        impostor.say(Challenge("0" * 32))
        impostor.hear(Hello)
        impostor.hear(Proof)
        impostor.say(Welcome("0" * 64))

    thread = Thread(target=lie)
    thread.start()
    with pytest.raises(Refused, match="listener has another token"):
        door.knock(caller, TOKEN.encode(), hello)
    thread.join()
    caller.close()
    impostor.close()


def test_a_short_token_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="at least 16"):
        door.checked_token("short")


def test_a_proof_that_was_overheard_opens_nothing_again(tmp_path: Path) -> None:
    with world(small(), tmp_path) as made:
        hello = Hello("lead", "sender", 0, 3, 1, made.plan.fingerprint, door.nonce())
        first = call(made.addresses[0], False, 5)
        challenge = first.hear(Challenge)
        proof = Proof(door._mac(TOKEN.encode(), "caller", challenge, hello))
        for again, outcome in ((first, Welcome), (call(made.addresses[0], False, 5), None)):
            if again is not first:
                again.hear(Challenge)
            again.say(hello)
            again.say(proof)
            if outcome is not None:
                again.hear(outcome)
            else:
                with pytest.raises(Refused, match="another token"):
                    again.hear(Welcome)
        first.close()
        again.close()


GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 100,
    b"\x80\x04\x95" + b"." * 200,
    b"RMW1" + b"\xff" * 60,
    Header(Kind.MESSAGE, 0, 2**63).pack() + b"x" * 100,
    Header(Kind.MESSAGE, 0, MAX_GREETING_BYTES + 1).pack() + b"x" * 5000,
    Header(Kind.MESSAGE, 0, 9).pack() + b'{"type":1',
    Header(Kind.MESSAGE, 0, 4000).pack() + b"[" * 4000,
    Header(Kind.MESSAGE, 0, 26).pack() + b'{"type":"Proof","mac":"\xff"}',
    Header(Kind.PLAIN, 1, 1024, b"d" * 16).pack() + bytes(1024),
    Header(Kind.MESSAGE, 0, 18).pack() + b'{"type":"Flipped"}',
    b"",
]


@pytest.mark.parametrize("said", GARBAGE, ids=range(len(GARBAGE)))
def test_a_stranger_who_says_anything_is_hung_up_on_and_changes_nothing(tmp_path: Path, said: bytes) -> None:
    with world(small(), tmp_path) as made:
        publish(made, 1)
        made.sync(1)
        leader = led(made, 2, 2)
        leader.say(Begin(tuple(made.addresses)))
        leader.hear(Begun)
        host, _, port = made.addresses[0][0].removeprefix("tcp://").rpartition(":")
        # It may hang up on what it has heard so far.
        with socket.create_connection((host, int(port)), timeout=10) as link, suppress(OSError):
            link.sendall(said)
            link.shutdown(socket.SHUT_WR)
            while link.recv(4096):
                pass
        giving(made, 2, 2).close()  # the attempt under way goes on
        leader.close()
        publish(made, 2)
        made.sync(3)
        assert made.serve(whole(made.plan, 2))


def led(made: World, epoch: int, version: int, to: int = 0) -> Channel:
    channel = call(made.addresses[to], False, 10)
    door.knock(channel, TOKEN.encode(), Hello("lead", "sender", 0, epoch, version, made.plan.fingerprint, door.nonce()))
    channel.hear(Status)
    return channel


def giving(made: World, epoch: int, version: int, role: str = "sender", to: int = 0) -> Channel:
    channel = call(made.addresses[to], False, 10)
    door.knock(channel, TOKEN.encode(), Hello("give", role, 0, epoch, version, made.plan.fingerprint, door.nonce()))
    return channel


@pytest.mark.parametrize(
    "frame",
    [
        Header(Kind.PLAIN, 10**6, 64, b"d" * 16),
        Header(Kind.PLAIN, 0, 2**40, b"d" * 16),
        Header(Kind.PLAIN, 0, 1, b"d" * 16),
        Header(Kind.DELTA, 0, 2**40, b"d" * 16),
        Header(Kind.DELTA, 0, 3, b"d" * 16),
        Header(Kind.KEPT, 0, 0, b"d" * 16),
        Header(Kind.KEPT, 0, 0, NO_DIGEST),
        Header(Kind.TAKEN),
    ],
    ids=str,
)
def test_frames_that_do_not_fit_end_the_attempt_and_change_nothing_that_is_served(
    tmp_path: Path, frame: Header
) -> None:
    with world(small(senders=(1, 1), receivers=(1, 1)), tmp_path) as made:
        publish(made, 1)
        made.sync(1)
        leader = led(made, 2, 2)
        leader.say(Begin((made.addresses[0],)))
        leader.hear(Begun)
        giver = giving(made, 2, 2)
        giver.body(giver.header().size)
        giver._link.sendall(frame.pack() + b"x" * 64)
        with pytest.raises((Refused, Broken)):
            leader.hear(Begun)
        giver.close()
        leader.close()
        assert made.serve(whole(made.plan, 1))
        publish(made, 3)
        made.sync(3)
        assert made.serve(whole(made.plan, 3))


def test_a_piece_that_comes_twice_ends_the_attempt(tmp_path: Path) -> None:
    with world(small(senders=(1, 1), receivers=(1, 1)), tmp_path) as made:
        publish(made, 1)
        made.sync(1)
        leader = led(made, 2, 1)
        leader.say(Begin((made.addresses[0],)))
        leader.hear(Begun)
        giver = giving(made, 2, 1)
        held = bytes(giver.body(giver.header().size))
        for _ in range(2):
            giver._link.sendall(Header(Kind.KEPT, 0, 0, held[16:32]).pack())
        with pytest.raises(Refused, match="came twice"):
            leader.hear(Begun)
        giver.close()
        leader.close()


def test_nobody_flips_to_what_has_not_landed(tmp_path: Path) -> None:
    with world(small(senders=(1, 1), receivers=(1, 1)), tmp_path) as made:
        publish(made, 1)
        made.sync(1)
        leader = led(made, 2, 2)
        leader.say(Flip(2, 2))
        with pytest.raises(Refused, match="has not landed"):
            leader.hear(Begun)
        leader.close()
        assert made.serve(whole(made.plan, 1))


def test_nobody_flips_to_another_version_than_the_one_that_has_landed(tmp_path: Path) -> None:
    with world(small(senders=(1, 1), receivers=(1, 1)), tmp_path) as made:
        for version in (1, 2):
            publish(made, version)
            made.sync(version)
        late = made.receivers[0]
        late.close()
        for name, version, generation in (("held", 1, 0), ("ready", 2, 1)):
            mark = Mark(version, version, generation, made.plan.fingerprint)
            (late.folder / name).write_bytes(msgspec.json.encode(mark))
        made.receivers[0] = again = Receiver(made.plan, 0, late.folder, TOKEN, ["tcp://127.0.0.1:0"])
        leader = led(made, 3, 3)
        leader.say(Flip(3, 3))
        with pytest.raises(Refused, match="version 3 of epoch 3 has not landed"):
            leader.hear(Flipped)
        leader.close()
        assert holds(made.plan, again, whole(made.plan, 1))


def test_a_newer_attempt_ends_the_one_before(tmp_path: Path) -> None:
    with world(small(senders=(1, 1), receivers=(1, 1)), tmp_path) as made:
        publish(made, 1)
        older = led(made, 2, 1)
        older.say(Begin((made.addresses[0],)))
        older.hear(Begun)
        stuck = giving(made, 2, 1)
        made.sync(3)
        assert made.serve(whole(made.plan, 1))
        with pytest.raises(Refused, match="epoch 3 has begun"):
            older.hear(Begun)
        assert made.receivers[0].held is not None
        assert made.receivers[0].held.epoch == 3
        for channel in (older, stuck):
            channel.close()


def test_ranks_with_another_plan_are_told_so(tmp_path: Path) -> None:
    with world(small(), tmp_path) as made:
        other = small(chunk_bytes=512)
        sender = Sender(other, 0, tmp_path / "other", TOKEN)
        sender.publish(1, lambda _name, _words: None)
        with pytest.raises(Refused, match="give all the same"):
            sender.sync(1, made.addresses)
        sender.close()


ONE_PIECE = make_plan(Exchange(TENSORS[:1], side(1, 1, {}, "train"), side(1, 2, {}, "roll")))  # 1 has it from 0


def test_a_receiver_that_has_nothing_to_pass_on_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as pieces land: here the round is more patient than a connection."""
    until_whole = Round.until_whole
    monkeypatch.setattr(Round, "until_whole", lambda self, _: until_whole(self, PATIENCE_S))
    with world(ONE_PIECE, tmp_path) as made:
        leader = led(made, 1, 1, to=1)
        leader.say(Begin(tuple(made.addresses)))
        leader.hear(Begun)
        made.receivers[1]._patience_s = 0.1
        giver = giving(made, 1, 1, "receiver", to=1)
        giver.body(giver.header().size)
        made.receivers[1]._patience_s = PATIENCE_S
        giver.patience(0.3)
        with pytest.raises(Silent):
            giver.header()
        giver.close()
        with pytest.raises(Refused, match="receiver 0: the other side hung up"):
            leader.hear(Whole)
        leader.close()


def test_where_nothing_lands_at_all_the_attempt_ends_for_whoever_is_waited_for(tmp_path: Path) -> None:
    with world(ONE_PIECE, tmp_path) as made:
        made.receivers[1]._patience_s = 0.3
        leader = led(made, 1, 1, to=1)
        leader.say(Begin(tuple(made.addresses)))
        leader.hear(Begun)
        giver = giving(made, 1, 1, "receiver", to=1)
        giver.body(giver.header().size)
        with pytest.raises(Refused, match="none has landed"):
            leader.hear(Whole)
        made.receivers[1]._patience_s = PATIENCE_S
        with pytest.raises(Broken):
            giver.header()
        giver.close()
        leader.close()


def test_a_receiver_that_stops_when_all_was_given_to_it_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that is stopped by a signal: its connections stay, and nothing is owed to it."""
    monkeypatch.setattr(lead, "_ANSWER_S", 0.1)
    with world(small(senders=(1, 1), receivers=(2, 1)), tmp_path) as made:
        publish(made, 1)
        stopped, goes_on = made.receivers[1], Event()
        prepare = stopped._shelf.prepare
        monkeypatch.setattr(stopped._shelf, "prepare", lambda *args: (goes_on.wait(10), prepare(*args)))
        made.senders[0]._patience_s = 0.3
        with pytest.raises(Silent, match=r"^receiver 1: the other side was silent for too long"):
            made.sync(1)
        goes_on.set()
        made.senders[0]._patience_s = PATIENCE_S
        assert made.sync(2).plain == 0
        assert made.serve(whole(made.plan, 1))


def test_a_leader_waits_for_pieces_that_others_give_for_as_long_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far longer than it would wait for a receiver that says nothing."""
    monkeypatch.setattr(lead, "_ANSWER_S", 0.1)
    monkeypatch.setattr(round, "_SIGN_S", 0.05)
    with world(small(senders=(2, 1), receivers=(1, 1)), tmp_path) as made:
        publish(made, 1)
        began = time.monotonic()

        def slow(got: bytes, _: int) -> bytes:
            time.sleep(max(0.0, began + 1.0 - time.monotonic()))
            return got

        relay = Relay(made.receivers[0].addresses[0], slow)
        made.senders[0]._patience_s = 0.3
        with futures.ThreadPoolExecutor() as executor:
            leading = executor.submit(made.senders[0].sync, 1, made.addresses)
            assert made.senders[1].sync(1, [(relay.address,)]).plain > 0
            leading.result()
        assert time.monotonic() - began > 1.0, "nothing was slow"
        relay.close()
        assert made.serve(whole(made.plan, 1))


def test_where_some_may_serve_a_version_it_is_not_said_that_nobody_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(small(senders=(1, 1), receivers=(2, 1)), tmp_path) as made:
        publish(made, 1)
        flip = made.receivers[1]._flip
        monkeypatch.setattr(made.receivers[1], "_flip", lambda *_: (_ for _ in ()).throw(Broken("lost")))
        with pytest.raises(HalfServed, match=r"^receiver 1: lost; version 1 may be served by some: the next attempt"):
            made.sync(1)
        monkeypatch.setattr(made.receivers[1], "_flip", flip)
        assert [receiver.held is not None for receiver in made.receivers] == [True, False]
        other = Lead(made.plan, 2, 2, TOKEN.encode(), PATIENCE_S)
        assert other.begin(made.addresses)
        other.close()
        assert made.serve(whole(made.plan, 1))


def test_a_sender_that_comes_once_its_attempt_has_failed_is_told_why(tmp_path: Path) -> None:
    with world(small(senders=(2, 1), receivers=(1, 1)), tmp_path) as made:
        publish(made, 1)
        made.receivers[0]._patience_s = 0.3
        why = r"\d+ pieces are missing, and none has landed for 0\.3 s: over a slow link give a smaller `chunk_bytes`"
        for sender in made.senders:
            with pytest.raises(SyncFailed, match=why):
                sender.sync(1, made.addresses)
        made.receivers[0]._patience_s = PATIENCE_S


def test_a_receiver_that_finds_no_thread_for_a_caller_serves_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused = Thread.start, list[Thread]()

    def start(thread: Thread) -> None:
        if thread.name == "sync caller" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        real(thread)

    with world(small(senders=(1, 1), receivers=(1, 1)), tmp_path) as made:
        publish(made, 1)
        monkeypatch.setattr(Thread, "start", start)
        turned_away = call(made.addresses[0], False, 10)
        with pytest.raises(Broken):
            turned_away.hear(Challenge)
        turned_away.close()
        assert refused
        made.sync(1)
        assert made.serve(whole(made.plan, 1))


def test_more_callers_than_there_may_be_at_once_are_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive, "MAX_CALLERS", 2)
    with world(small(senders=(1, 1), receivers=(1, 1)), tmp_path) as made:
        publish(made, 1)
        first, second = (call(made.addresses[0], False, 10) for _ in range(2))
        for each in (first, second):
            each.hear(Challenge)
        third = call(made.addresses[0], False, 10)
        with pytest.raises(Broken):
            third.hear(Challenge)
        for each in (first, second, third):
            each.close()
        receiver = made.receivers[0]
        with receiver._changed:
            assert receiver._changed.wait_for(lambda: not receiver._callers, PATIENCE_S)
        made.sync(1)
        assert made.serve(whole(made.plan, 1))


def test_a_stranger_who_says_a_byte_now_and_then_is_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive, "GREETING_S", 0.3)
    with world(small(senders=(1, 1), receivers=(1, 1)), tmp_path) as made:
        stranger = call(made.addresses[0], False, 10)
        stranger.hear(Challenge)
        said = Header(Kind.MESSAGE, 0, 4000).pack() + b"{" * 30
        for byte in said:
            if stranger.is_over:
                break
            with suppress(OSError):
                stranger._link.send(bytes([byte]))
            time.sleep(0.05)
        else:
            pytest.fail("it was listened to for as long as it spoke")
        stranger.close()


def test_who_takes_a_piece_slowly_is_not_silent() -> None:
    patience_s, size = 0.8, 450_000
    near, far = socket.socketpair()
    for link in (near, far):
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    came = bytearray()

    def takes() -> None:
        while part := far.recv(10_000):
            came.extend(part)
            time.sleep(0.02)

    taking = Thread(target=takes, daemon=True)
    taking.start()
    giver = Channel(near, Inline(), patience_s)
    begun = time.monotonic()
    giver.give(Header(Kind.PLAIN, 0, size), bytes(size), 0)
    assert time.monotonic() - begun > patience_s
    giver.close()
    taking.join()
    far.close()
    assert came == Header(Kind.PLAIN, 0, size).pack() + bytes(size)


@pytest.mark.parametrize("delta", [False, True])
def test_a_byte_of_what_is_served_that_went_bad_is_sent_again(tmp_path: Path, delta: bool) -> None:
    with world(small(senders=(1, 1), receivers=(1, 1)), tmp_path, delta=delta) as made:
        made.publish(1, whole(made.plan, 1, 0.02))
        made.sync(1)
        held = made.receivers[0].held
        assert held is not None
        with (made.receivers[0].folder / f"weights-{held.generation}").open("r+b") as file:
            before = file.read(2)
            file.seek(0)
            file.write(bytes(each ^ 255 for each in before))
        version = 2 if delta else 1
        made.publish(version, whole(made.plan, version, 0.02))
        with pytest.raises(SyncFailed, match="it will be sent again"):
            made.sync(2)
        assert made.sync(3).plain == 1
        assert made.serve(whole(made.plan, version, 0.02))


def test_a_sender_as_patient_as_its_receivers_hears_what_they_waited_for(tmp_path: Path) -> None:
    with world(small(senders=(1, 1), receivers=(1, 1)), tmp_path) as made:
        for version in (1, 2):
            publish(made, version)
            made.sync(version)
            if version == 1:
                older = made.receivers[0].read()
        publish(made, 3)
        made.senders[0]._patience_s = made.receivers[0]._patience_s = 0.3
        for epoch in (3, 4, 5):
            with pytest.raises(Refused, match="is still read after"):
                made.sync(epoch)
        made.receivers[0]._patience_s = PATIENCE_S
        older.close()


def test_a_receiver_whose_folder_has_a_name_that_is_no_text_says_what_is_wrong_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "rollmux")  # pytest's workers can't send such a name on
    with world(small(senders=(1, 1), receivers=(1, 1)), tmp_path / os.fsdecode(b"\xff")) as made:
        publish(made, 1)
        made.sync(1)
        with made.receivers[0].read():
            publish(made, 2)
            made.sync(2)
            publish(made, 3)
            made.receivers[0]._patience_s = 0.1
            with pytest.raises(Refused, match=r"/\\udcff/.*/weights-0 is still read after"):
                made.sync(3)
            made.receivers[0]._patience_s = PATIENCE_S


def test_who_sends_is_told_which_receiver_it_failed_at(tmp_path: Path) -> None:
    """And not what the others say, who were hung up on for it. These pass nothing on to one another."""
    halves = side(2, 1, {"up": 1, "down": 0}, "roll")
    with world(make_plan(Exchange(TENSORS[:2], side(1, 1, {}, "train"), halves, 1024)), tmp_path) as made:
        publish(made, 1)
        gone = Event()

        def late(got: bytes, _: int) -> bytes:
            if len(got) > 500:  # pieces, which are 996 bytes with what is around them
                gone.wait(5)
                time.sleep(0.2)
            return got

        def broken(got: bytes, _: int) -> bytes:
            if len(got) > 500:
                gone.set()
                raise OSError
            return got

        relays = [Relay(made.receivers[rank].addresses[0], change) for rank, change in enumerate((late, broken))]
        with pytest.raises(SyncFailed, match=r"^receiver 1: "):
            made.senders[0].sync(1, [(relay.address,) for relay in relays])
        for relay in relays:
            relay.close()
        made.receivers[0].close()
        with pytest.raises(Broken, match=r"^receiver 0: tcp://.* can't be reached"):
            made.sync(2)


def test_an_interrupt_hangs_up_on_all_receivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not answer, so that each call would wait for long."""
    plan = small(senders=(2, 1), receivers=(1, 2))
    sender = Sender(plan, 1, tmp_path / "sender", TOKEN, patience_s=8)
    sender.publish(1, lambda _name, _words: None)
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    links, hung_up, real = list[socket.socket](), list[bool](), futures.wait

    def watch() -> None:
        for link in links:
            link.settimeout(5)
            with suppress(TimeoutError):
                hung_up.append(link.recv(1) == b"")

    watching = Thread(target=watch)

    def interrupted(*args: Any, **options: Any) -> Any:
        if not links:
            links.extend(server.accept()[0] for server in servers)
            watching.start()
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(send, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sender.sync(1, [(f"tcp://127.0.0.1:{server.getsockname()[1]}",) for server in servers])
    watching.join()
    for link in (*links, *servers):
        link.close()
    sender.close()
    assert hung_up == [True, True]


def test_a_header_has_the_size_that_the_limits_reckon_with() -> None:
    assert len(Header(Kind.KEPT).pack()) == HEADER_BYTES == struct.calcsize("<4sBxxxIQ16s")
    assert msgspec.json.decode(msgspec.json.encode(Flip(1, 2)))["type"] == "Flip"
