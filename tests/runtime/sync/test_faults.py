"""What must not be believed: damaged bytes, old epochs, strangers, messages out of place. Nothing of it is served."""

import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread

import msgspec
import pytest

from rollmux.errors import InvalidSpec
from rollmux.runtime.sync import Mark, Receiver, Refused, Sender, SyncFailed, door
from rollmux.runtime.sync.channel import Channel
from rollmux.runtime.sync.errors import Broken
from rollmux.runtime.sync.generation import NO_DIGEST
from rollmux.runtime.sync.lead import Lead
from rollmux.runtime.sync.transports.inline import Inline
from rollmux.runtime.sync.transports.sockets import call
from rollmux.runtime.sync.wire import (
    HEADER_BYTES,
    MAX_GREETING_BYTES,
    Begin,
    Begun,
    Challenge,
    Flip,
    Header,
    Hello,
    Kind,
    Proof,
    Status,
    Welcome,
)
from tests.runtime.sync.models import TOKEN, World, holds, small, whole, world


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
        lead = Lead(made.plan, 3, 3, TOKEN.encode(), 10)
        assert lead.begin(made.addresses)
        assert holds(made.plan, again, whole(made.plan, 2))
        lead.close()


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
    Header(Kind.PLAIN, 1, 1024, b"d" * 16).pack() + bytes(1024),
    Header(Kind.MESSAGE, 0, 18).pack() + b'{"type":"Flipped"}',
    b"",
]


@pytest.mark.parametrize("said", GARBAGE, ids=range(len(GARBAGE)))
def test_a_stranger_who_says_anything_is_hung_up_on_and_changes_nothing(tmp_path: Path, said: bytes) -> None:
    with world(small(), tmp_path) as made:
        publish(made, 1)
        made.sync(1)
        host, _, port = made.addresses[0][0].removeprefix("tcp://").rpartition(":")
        # It may hang up on what it has heard so far.
        with socket.create_connection((host, int(port)), timeout=10) as link, suppress(OSError):
            link.sendall(said)
            link.shutdown(socket.SHUT_WR)
            while link.recv(4096):
                pass
        publish(made, 2)
        made.sync(2)
        assert made.serve(whole(made.plan, 2))


def led(made: World, epoch: int, version: int) -> Channel:
    channel = call(made.addresses[0], False, 10)
    door.knock(channel, TOKEN.encode(), Hello("lead", "sender", 0, epoch, version, made.plan.fingerprint, door.nonce()))
    channel.hear(Status)
    return channel


def giving(made: World, epoch: int, version: int) -> Channel:
    channel = call(made.addresses[0], False, 10)
    door.knock(channel, TOKEN.encode(), Hello("give", "sender", 0, epoch, version, made.plan.fingerprint, door.nonce()))
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


def test_a_header_has_the_size_that_the_limits_reckon_with() -> None:
    assert len(Header(Kind.KEPT).pack()) == HEADER_BYTES == struct.calcsize("<4sBxxxIQ16s")
    assert msgspec.json.decode(msgspec.json.encode(Flip(1, 2)))["type"] == "Flip"
