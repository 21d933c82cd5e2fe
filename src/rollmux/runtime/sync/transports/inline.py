"""TCP: the bytes of a piece follow its header, from the giver's mapped memory straight into the taker's."""

import socket
from pathlib import Path

from rollmux.runtime.sync.channel import Payload, fill, send_all


class Inline:
    """A carrier without state: one serves all connections."""

    def open_giver(self, link: socket.socket, path: Path) -> None: ...

    def open_taker(self, link: socket.socket) -> None: ...

    def give(self, link: socket.socket, header: bytes, payload: Payload, at: int | None) -> None:
        send_all(link, header, payload)

    def take(self, link: socket.socket, into: memoryview) -> None:
        fill(link, into)

    def close(self) -> None: ...
