"""How the processes of an attempt find each other: the leader's address is in the run's folder, which they share.

Invariant: a caller that has not shown that it has the job's token gets no further than the greeting.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from time import monotonic

import msgspec

from rollmux.client.kin import Kin
from rollmux.runtime.sync import door
from rollmux.runtime.sync.channel import Channel
from rollmux.runtime.sync.errors import Broken
from rollmux.runtime.sync.transports.sockets import call
from rollmux.runtime.sync.wire import Hello
from rollmux.trainer.errors import RanksApart

LEADER = "leader.json"
GREETING_S = 10.0
POLL_S = 0.1
# The variable that names the memory that an attempt's processes share on a node, if the launcher gives them some.
MEMORY = "ROLLMUX_MEMORY"


class _Leader(msgspec.Struct, frozen=True):
    """The file's content. `of` tells which attempt wrote it: the file of an earlier attempt, or of another job of the
    same name, may still be there."""

    of: str
    address: str


def token(kin: Kin) -> str:
    return kin.key("ranks")


def announce(folder: Path, kin: Kin, address: str) -> None:
    """Writes this process's address to the folder: from now on followers find it."""
    beside = folder / f"{LEADER}.new"
    beside.write_bytes(msgspec.json.encode(_Leader(kin.key(LEADER), address)))
    os.replace(beside, folder / LEADER)


def reach(folder: Path, kin: Kin, purpose: str, patience_s: float, given_up: Event) -> Channel:
    """A connection to the leader of this attempt, once there is one. RanksApart once `patience_s` is over or it is
    `given_up`."""
    end = monotonic() + patience_s
    while True:
        try:
            return _greeted(folder, kin, purpose)
        except (OSError, msgspec.DecodeError, Broken, _OfAnother) as why:
            if monotonic() >= end or given_up.is_set():
                trouble = f"no leader of attempt {kin.attempt} was found by {folder / LEADER} within {patience_s:g} s"
                raise RanksApart(f"{trouble}: is the folder shared by all nodes of the job? {why}") from why
        given_up.wait(POLL_S)


class _OfAnother(Exception):
    """The file is another attempt's: the leader of this one has not written it yet."""


def _greeted(folder: Path, kin: Kin, purpose: str) -> Channel:
    leader = msgspec.json.decode((folder / LEADER).read_bytes(), type=_Leader)
    if leader.of != kin.key(LEADER):
        raise _OfAnother("there is one of another attempt")
    channel = call((leader.address,), same_node=False, patience_s=GREETING_S)
    try:
        hello = Hello(purpose, "rank", kin.rank, kin.attempt, 0, "", door.nonce())
        door.knock(channel, token(kin).encode(), hello)
    except BaseException:
        channel.close()
        raise
    channel.patience(None)
    return channel


@contextmanager
def host_memory() -> Iterator[Path]:
    """A folder for weights: in the memory that the launcher gives to an attempt and takes back, or in /dev/shm."""
    given = os.environ.get(MEMORY, "")
    shared = Path("/dev/shm")
    within = given or (str(shared) if os.access(shared, os.W_OK) else None)
    with TemporaryDirectory(prefix="rollmux-weights-", dir=within, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
