"""The processes of a job, as one of them sees the others: which one it is, and how they find and trust each other.

The controller grants the processes their phases together. All else that they tell each other they send directly.
"""

import hmac
import json
import socket
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from rollmux.client.link import Link
from rollmux.errors import InvalidSpec, Problem

LOOPBACK = "127.0.0.1"
_LOOPBACKS = ("127.", "::1")
_ELSEWHERE = ("192.0.2.1", "2001:db8::1")  # addresses that belong to nobody (RFC 5737, RFC 3849)


@dataclass(frozen=True, slots=True)
class Kin:
    """This process among those of its attempt; without a controller it is the only one, of attempt 0."""

    rank: int = 0
    processes: int = 1
    attempt: int = 0
    host: str = LOOPBACK  # this machine's address on the network by which it reaches the controller
    job: str = ""
    token: str = ""

    @classmethod
    def of(cls, link: Link) -> "Kin":
        wire = link.wire
        return cls(link.rank, link.processes, link.attempt, _host(wire.url), link.job, wire.token)

    def __repr__(self) -> str:
        return f"Kin(rank {self.rank} of {self.processes}, attempt {self.attempt}, at {self.host})"

    def key(self, purpose: str) -> str:
        """A secret that each process of this attempt computes by itself, and that needs the job's token."""
        if not self.token:
            problem = Problem("ROLLMUX_TOKEN", "", "the job's token", "start its processes by a controller's launcher")
            raise InvalidSpec("connection", (problem,))
        named = json.dumps([self.job, self.attempt, purpose])
        return hmac.digest(self.token.encode(), named.encode(), "sha256").hex()


def _host(url: str) -> str:
    """The address of the interface by which the controller is reached. Nothing is sent.

    The controller's machine may resolve its own name to a loopback address, which other machines can't use: then the
    address is that of the interface to the outside.
    """
    name = urlsplit(url).hostname or LOOPBACK
    found = _towards(name)
    if found.startswith(_LOOPBACKS) and name != "localhost" and not name.startswith(_LOOPBACKS):
        found = next((each for each in map(_towards, _ELSEWHERE) if not each.startswith(_LOOPBACKS)), LOOPBACK)
    return found


def _towards(name: str) -> str:
    """The address of this machine from which that one is reached, by IPv4 if it can be; LOOPBACK if it can't."""
    with suppress(OSError):
        known = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)
        for family, kind, _, _, address in sorted(known, key=lambda each: each[0] != socket.AF_INET):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    return LOOPBACK
