"""Addresses `tcp://host:port` and `unix:///path`: listening at them and calling them."""

import errno
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rollmux.runtime.sync.channel import Carrier, Channel
from rollmux.runtime.sync.errors import Broken, Refused
from rollmux.runtime.sync.transports.inline import Inline
from rollmux.runtime.sync.transports.shared import Shared

_BACKLOG = 128
# A host that vanished without a word is noticed after some 40 s, whether something was on its way to it or not.
# Options that the system lacks are left out; without the second it gives up what is on its way in its own time.
_OF_TCP = {
    "TCP_NODELAY": 1,
    "TCP_USER_TIMEOUT": 40_000,
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPALIVE": 10,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 6,
}


class Listener:
    """A socket that others call; its address names the port that it got."""

    def __init__(self, address: str) -> None:
        scheme, rest = _parsed(address)
        if scheme == "unix":
            path = Path(rest)
            if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
                _require_dead(rest)
                path.unlink()
            self.link = socket.socket(socket.AF_UNIX)
            self.link.bind(rest)
            path.chmod(0o600)
            self.address = address
        else:
            host, port = _host_port(address)
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self.link = socket.create_server((host, port), family=family, backlog=_BACKLOG)
            self.address = f"tcp://{host}:{self.link.getsockname()[1]}"
        self.link.listen(_BACKLOG)

    def accept(self, patience_s: float) -> Channel:
        link, _ = self.link.accept()
        return _channel(link, patience_s)

    def close(self) -> None:
        if self.link.fileno() < 0:
            return  # and its address may be another's by now
        if self.link.family == socket.AF_UNIX:
            Path(self.link.getsockname()).unlink(missing_ok=True)
        with suppress(OSError):
            self.link.shutdown(socket.SHUT_RDWR)  # wakes whoever waits for a call
        self.link.close()


def _require_dead(path: str) -> None:
    """Refuses a path at which somebody listens; only a socket left by a killed process may be replaced."""
    with socket.socket(socket.AF_UNIX) as link:
        link.setblocking(False)
        if link.connect_ex(path) != errno.ECONNREFUSED:
            raise Refused(f"somebody listens at unix://{path}: give each its own address")


def call(addresses: Sequence[str], same_node: bool, patience_s: float) -> Channel:
    """The best of a party's addresses that answers: shared memory on one node, else TCP."""
    local = [address for address in addresses if address.startswith("unix:")]
    remote = [address for address in addresses if address.startswith("tcp:")]
    chosen = (local if same_node else []) + remote
    if not chosen:
        raise Refused(f"none of the addresses {', '.join(addresses)} can be called from here: listen on TCP as well")
    troubles = list[str]()
    for address in chosen:
        try:
            return _channel(_connected(address, patience_s), patience_s)
        except OSError as trouble:
            troubles.append(f"{address} can't be reached: {trouble}")
    raise Broken("; ".join(troubles))


def _connected(address: str, patience_s: float) -> socket.socket:
    scheme, rest = _parsed(address)
    if scheme == "tcp":
        return socket.create_connection(_host_port(address), timeout=patience_s)
    link = socket.socket(socket.AF_UNIX)
    try:
        link.settimeout(patience_s)
        link.connect(rest)
    except BaseException:
        link.close()
        raise
    return link


def _channel(link: socket.socket, patience_s: float) -> Channel:
    carrier: Carrier = Inline()
    if link.family == socket.AF_UNIX:
        carrier = Shared()
    else:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _OF_TCP.items():
            if hasattr(socket, name):
                link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return Channel(link, carrier, patience_s)


def _parsed(address: str) -> tuple[str, str]:
    scheme, sep, rest = address.partition("://")
    if not sep or scheme not in ("tcp", "unix") or not rest:
        raise Refused(f"address {address[:200]!r}: must be tcp://host:port or unix:///path")
    return scheme, rest


def _host_port(address: str) -> tuple[str, int]:
    """An IPv6 address may stand in brackets, and need not: a port is always named."""
    host, _, port = _parsed(address)[1].rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise Refused(f"address {address[:200]!r}: must name a host and a port, as tcp://10.0.0.1:7000")
    return host, int(port)
