"""torch.distributed: frames go by TCP as always, the bytes of pieces by point-to-point operations, on gloo or NCCL.

Each connection that carries pieces has a group of its own: NCCL matches operations of a group by their order alone, and
two directions in one group would wait for one another. An attempt that failed leaves operations behind that nobody will
match, as with any use of torch.distributed: processes leave and join anew before the next one.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from rollmux.runtime.sync.channel import Carry, Party, Payload, send_all
from rollmux.runtime.sync.errors import Broken
from rollmux.runtime.sync.plan import Plan

CPU = torch.device("cpu")


def connections(plan: Plan) -> list[tuple[Party, Party]]:
    """Who gives pieces to whom, in the same order in every process."""
    found: set[tuple[Party, Party]] = set()
    for piece in plan.pieces:
        first = ("receiver", piece.first)
        found.add((("sender", piece.sender), first))
        found |= {(first, ("receiver", rank)) for rank in piece.shared}
    return sorted(found)


def carrying(plan: Plan, numbers: Mapping[Party, int], device: torch.device = CPU) -> Carry:
    """Makes all groups: every process of the default group calls this, with the same plan and the same numbers.

    On a device other than the CPU bytes pass through its memory, as NCCL wants it.
    """
    groups = {pair: dist.new_group([numbers[party] for party in pair]) for pair in connections(plan)}

    def carry(giver: Party, taker: Party) -> "Distributed":
        return Distributed(groups[giver, taker], numbers[giver], numbers[taker], device)

    return carry


@dataclass(frozen=True, slots=True)
class Distributed:
    """The carrier of one connection."""

    group: dist.ProcessGroup | None
    giver: int
    taker: int
    device: torch.device

    def open_giver(self, link: socket.socket, path: Path) -> None: ...

    def open_taker(self, link: socket.socket) -> None: ...

    def give(self, link: socket.socket, header: bytes, payload: Payload, at: int | None) -> None:
        send_all(link, header, b"")
        content = torch.frombuffer(bytearray(payload) if isinstance(payload, bytes) else payload, dtype=torch.uint8)
        try:
            dist.send(content.to(self.device), self.taker, self.group)
        except RuntimeError as trouble:
            raise Broken(f"process {self.taker} can't be sent to: {trouble}") from trouble

    def take(self, link: socket.socket, into: memoryview) -> None:
        place = torch.frombuffer(into, dtype=torch.uint8)
        content = place if self.device == CPU else torch.empty_like(place, device=self.device)
        try:
            dist.recv(content, self.giver, self.group)
        except RuntimeError as trouble:
            raise Broken(f"nothing can be had from process {self.giver}: {trouble}") from trouble
        if content is not place:
            place.copy_(content)

    def close(self) -> None: ...
