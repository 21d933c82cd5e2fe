"""Three rollout engines take turns on one device: each wakes, answers as before, and leaves nothing behind.

A turn is load, resume, canary, suspend, offload. The bytes that an engine left are compared with those that it finds
when it comes back, and its canary with its earlier answer. The first engine's weights change in each turn; the others'
stay the same, and are dropped without a copy. After each offload the device is asked how much of it is still in use.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.figures.switch_jobs import PROMPT, Shape, model_of
from benchmarks.harness import Row
from rollmux.runtime.engine import Canary, CanaryDied, Limits
from rollmux.runtime.engine.slots import slots
from rollmux.runtime.residency import Budget, CpuMemory, Memory, Resident
from rollmux.runtime.residency.cuda import CudaMemory

ENGINES, ANSWER = 3, 8
WARMED_UP = 20  # rotations until the process has all that it needs for itself
LIMITS = Limits(room_tokens=1024, max_length=256)


class Tenant:
    """One of the three: its engine, its weights, and what both were when it left."""

    def __init__(self, budget: Budget, shape: Shape, number: int, memory: Memory) -> None:
        self.memory, self.changes = memory, number == 0
        self.model = model_of(shape, memory.device)
        self.engine = slots(self.model, LIMITS)
        self.resident = Resident(
            self.model, name=f"tenant{number}", budget=budget, memory=memory, read_only=not self.changes
        )
        self.canary = Canary.learn(self.engine, tuple(range(PROMPT)), ANSWER)
        self.leave()
        self.resident.load()  # into one piece of memory, from which on it can be compared
        self.engine.resume()
        self.left = self.bytes_there()
        self.leave()

    def turn(self) -> tuple[bool, bool]:
        """Whether the weights were as they had been left, and whether the answer was."""
        self.resident.load()
        same = torch.equal(self.bytes_there(), self.left)
        self.engine.resume()
        answered = self.answers()
        if self.changes:
            self.change()
        self.left = self.bytes_there()
        self.leave()
        return same, answered

    def answers(self) -> bool:
        try:
            self.canary.check(self.engine)
        except CanaryDied:
            return False
        return True

    @torch.no_grad()
    def change(self) -> None:
        """New weights, as a step of training leaves them; the canary learns what they answer."""
        for parameter in self.model.parameters():
            parameter.mul_(0.999).add_(1e-4)
        self.engine.update(self.engine.version + 1)
        self.canary = Canary.learn(self.engine, self.canary.prompt, ANSWER)

    def leave(self) -> None:
        self.engine.suspend()
        self.resident.offload()

    def bytes_there(self) -> Tensor:
        flat = self.resident.device.flat
        assert flat is not None
        return flat.to("cpu", copy=True)

    def close(self) -> None:
        self.engine.close()
        self.resident.close()


@dataclass(frozen=True, slots=True)
class Held:
    """What is in use: of the tenants' device memory, and of this process's own."""

    device_bytes: int
    private_bytes: int

    @classmethod
    def now(cls, tenants: Sequence[Tenant]) -> "Held":
        """In the words of the kernel, and of the GPU's driver."""
        on_gpu = {tenant.memory.device for tenant in tenants if isinstance(tenant.memory, CudaMemory)}
        free = [torch.cuda.mem_get_info(device) for device in on_gpu]
        here = sum(used(tenant.memory) for tenant in tenants if isinstance(tenant.memory, CpuMemory))
        return cls(here + sum(total - left for left, total in free), private_bytes())


def used(memory: CpuMemory) -> int:
    return memory.used_bytes() if memory.lazy else memory.resident_bytes()


def private_bytes() -> int:
    """This process's own memory, without what it maps of files."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) * 1024


def rotation(budget: Budget, shape: Shape, memories: Sequence[Memory], count: int, told: str) -> Row:
    """So many rotations; the first is for the device to take what it needs for itself."""
    tenants = [Tenant(budget, shape, number, memory) for number, memory in enumerate(memories)]
    changed = silent = 0
    for tenant in tenants:
        tenant.turn()
    empty = settled = Held.now(tenants)
    most = empty.device_bytes
    for number in range(count):
        for tenant in tenants:
            same, answered = tenant.turn()
            changed, silent = changed + (not same), silent + (not answered)
            most = max(most, Held.now(tenants).device_bytes)
        if number == min(WARMED_UP, count // 2):
            settled = Held.now(tenants)
    end = Held.now(tenants)
    row = {
        "device": told,
        "rotations": count,
        "turns": len(tenants) * count,
        "MB of each": tenants[0].resident.nbytes / 1e6,
        "turns with other weights": changed,
        "turns with another answer": silent,
        "device bytes left at most": most - (empty.device_bytes if told == "GPU" else 0),
        "bytes leaked": sum(tenant.resident.leaked_bytes for tenant in tenants),
        "MB grown after the first": (end.private_bytes - settled.private_bytes) / 1e6,
    }
    for tenant in tenants:
        tenant.close()
    return row
