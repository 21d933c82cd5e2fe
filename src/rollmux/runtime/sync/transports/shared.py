"""Shared memory of one node: the giver hands its file over once, and says of each piece where in the file it lies.

Invariant: the taker reads the giver's file and never maps it. A file that is cut short, or written to by an attempt
that is over, makes a short read or a wrong digest, and never a signal.
"""

import os
import socket
import struct
from pathlib import Path

from rollmux.runtime.sync.channel import Payload, fill, send_all
from rollmux.runtime.sync.errors import Broken

# Where the payload lies in the file; all ones if it follows here instead.
_AT = struct.Struct("<Q")
_FOLLOWS = 2**64 - 1


class Shared:
    """The carrier of one connection over a Unix socket."""

    def __init__(self) -> None:
        self._file = -1

    def open_giver(self, link: socket.socket, path: Path) -> None:
        readable = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            socket.send_fds(link, [b"F"], [readable])
        finally:
            os.close(readable)

    def open_taker(self, link: socket.socket) -> None:
        _, files, _, _ = socket.recv_fds(link, 1, 1)
        if len(files) != 1:
            raise Broken(f"{len(files)} files came where one was due: the giver is of another version")
        self._file = files[0]

    def give(self, link: socket.socket, header: bytes, payload: Payload, at: int | None) -> None:
        if at is None:
            send_all(link, header + _AT.pack(_FOLLOWS), payload)
        else:
            send_all(link, header, _AT.pack(at))

    def take(self, link: socket.socket, into: memoryview) -> None:
        raw = bytearray(_AT.size)
        fill(link, memoryview(raw))
        (at,) = _AT.unpack(raw)
        if at == _FOLLOWS:
            fill(link, into)
            return
        while into:
            got = os.preadv(self._file, [into], at)
            if not got:
                raise Broken(f"the giver's file ends at {at}: it was cut short")
            into, at = into[got:], at + got

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
