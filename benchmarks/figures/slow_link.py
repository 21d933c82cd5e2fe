"""Two clusters of network namespaces with a shaped link between their bridges.

All of it is in namespaces with names of their own: the machine's own network is not touched, and nothing is left when
they are removed. Segments are cut before the slow link's interface counts them: each packet counts with its headers.
"""

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

# Of data-centre links: jumbo frames, as every guide for them advises. A header then takes 0.7 % instead of 4.5 %.
MTU = 9000
# A token bucket that holds some milliseconds of the slowest rate: less and the kernel's timer throttles the link.
BURST_BYTES = 128 * 1024
# What the link's queue holds. With 50 ms a dozen streams on two busy cores lost a tenth of their packets to it, and
# what was measured was how TCP recovers; with 300 ms none is lost. It is the same for all ways.
QUEUE = "300ms"


class NotPermitted(Exception):
    """The machine lets us make no network namespaces, or lacks the tools."""


def _ip(*words: object) -> str:
    done = subprocess.run(["ip", *map(str, words)], check=False, capture_output=True, text=True)
    if done.returncode:
        raise NotPermitted(f"ip {' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Fabric:
    """The namespaces of both clusters' ranks, and the one in which their bridges and the slow link are."""

    core: str
    senders: tuple[str, ...]
    receivers: tuple[str, ...]

    def sender_host(self, rank: int) -> str:
        return f"10.77.0.{1 + rank}"

    def receiver_host(self, rank: int) -> str:
        return f"10.77.1.{1 + rank}"

    def crossed(self) -> dict[str, int]:
        """Bytes that went over the slow link so far, by direction, as its interfaces counted them."""
        found = {}
        for direction, name in (("forth", "slow-a"), ("back", "slow-b")):
            (link,) = json.loads(_ip("-n", self.core, "-s", "-j", "link", "show", name))
            found[direction] = int(link["stats64"]["tx"]["bytes"])
        return found


def shape(fabric: Fabric, mbit: int) -> None:
    for name in ("slow-a", "slow-b"):
        command = ["tc", "-n", fabric.core, "qdisc", "replace", "dev", name, "root", "tbf", "rate", f"{mbit}mbit"]
        command += ["burst", str(BURST_BYTES), "latency", QUEUE]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise NotPermitted(f"{' '.join(command)}: {done.stderr.strip()}")


@contextmanager
def fabric(senders: int, receivers: int, mbit: int) -> Iterator[Fabric]:
    """Both clusters up, and joined by a link of this rate."""
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        raise NotPermitted(f"no {' and no '.join(missing)} here: install iproute2")
    if os.geteuid():
        raise NotPermitted("network namespaces need root")
    name = f"rollmux-{secrets.token_hex(3)}"
    made = Fabric(
        f"{name}-core",
        tuple(f"{name}-a{rank}" for rank in range(senders)),
        tuple(f"{name}-b{rank}" for rank in range(receivers)),
    )
    spaces = (made.core, *made.senders, *made.receivers)
    try:
        _bridges(made)
        _ranks(made.core, "a", made.senders, made.sender_host)
        _ranks(made.core, "b", made.receivers, made.receiver_host)
        shape(made, mbit)
        yield made
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def _bridges(made: Fabric) -> None:
    _ip("netns", "add", made.core)
    core = ("-n", made.core, "link")
    for side in "ab":
        _ip(*core, "add", f"bridge-{side}", "mtu", MTU, "type", "bridge")
        _ip(*core, "set", f"bridge-{side}", "up")
    _ip(*core, "add", "slow-a", "mtu", MTU, "type", "veth", "peer", "name", "slow-b", "mtu", MTU)
    for side in "ab":
        _ip(*core, "set", f"slow-{side}", "master", f"bridge-{side}", "gso_max_segs", 1)
        _ip(*core, "set", f"slow-{side}", "up")


def _ranks(core: str, side: str, spaces: Sequence[str], host: Callable[[int], str]) -> None:
    for rank, space in enumerate(spaces):
        _ip("netns", "add", space)
        port = f"port-{side}{rank}"
        _ip("-n", core, "link", "add", port, "mtu", MTU, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("-n", core, "link", "set", port, "master", f"bridge-{side}", "up")
        _ip("-n", space, "link", "set", "eth0", "mtu", MTU)
        _ip("-n", space, "link", "set", "lo", "up")
        _ip("-n", space, "link", "set", "eth0", "up")
        _ip("-n", space, "address", "add", f"{host(rank)}/16", "dev", "eth0")
