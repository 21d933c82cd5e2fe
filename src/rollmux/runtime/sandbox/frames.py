"""One message: a JSON head and some bytes, over a stream socket.

Invariant: a reader takes no more than it was told to, whatever the other side says.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

from rollmux.errors import RollmuxError

MOST_HEAD_BYTES = 1 << 20
_SIZE = struct.Struct(">I")


class BrokenFrame(RollmuxError):
    """The other side ended, or sent something that can't be understood."""


def packed(head: dict[str, Any], blobs: Sequence[bytes] = ()) -> bytes:
    text = json.dumps({**head, "sizes": [len(blob) for blob in blobs]}).encode()
    if len(text) > MOST_HEAD_BYTES:
        raise BrokenFrame(f"a head of {len(text)} bytes: must be at most {MOST_HEAD_BYTES}; send it as a blob")
    return b"".join((_SIZE.pack(len(text)), text, *blobs))


def receive(connection: socket.socket, most_bytes: int) -> tuple[dict[str, Any], list[bytes]]:
    """Waits for the next message."""
    head, sizes = _head(_exactly(connection, _head_size(_exactly(connection, _SIZE.size))), most_bytes)
    return head, [_exactly(connection, size) for size in sizes]


async def receive_soon(connection: socket.socket, most_bytes: int) -> tuple[dict[str, Any], list[bytes]]:
    """Waits for the next message, while other tasks go on."""
    size = _head_size(await _exactly_soon(connection, _SIZE.size))
    head, sizes = _head(await _exactly_soon(connection, size), most_bytes)
    return head, [await _exactly_soon(connection, size) for size in sizes]


def _head_size(packed_size: bytes) -> int:
    size = int(_SIZE.unpack(packed_size)[0])
    if size > MOST_HEAD_BYTES:
        raise BrokenFrame(f"a head of {size} bytes: must be at most {MOST_HEAD_BYTES}")
    return size


def _head(text: bytes, most_bytes: int) -> tuple[dict[str, Any], list[int]]:
    head: dict[str, Any] = json.loads(text)
    sizes = [int(size) for size in head.pop("sizes")]
    if min(sizes, default=0) < 0 or sum(sizes) > most_bytes:
        raise BrokenFrame(f"a message of {sum(sizes)} bytes: must be at most {most_bytes}")
    return head, sizes


def _exactly(connection: socket.socket, size: int) -> bytes:
    taken = bytearray()
    while len(taken) < size:
        part = connection.recv(min(size - len(taken), 1 << 20))
        if not part:
            raise BrokenFrame("the connection ended within a message")
        taken += part
    return bytes(taken)


async def _exactly_soon(connection: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    taken = bytearray()
    while len(taken) < size:
        part = await loop.sock_recv(connection, min(size - len(taken), 1 << 20))
        if not part:
            raise BrokenFrame("the connection ended within a message")
        taken += part
    return bytes(taken)
