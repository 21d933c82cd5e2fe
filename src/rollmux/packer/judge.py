"""How many layers of a judge model stay on the device while the rest is streamed from host memory through two buffers.

Invariant: a plan never takes more bytes than are free, and has the fewest resident layers of all plans whose streaming
hides behind computation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from rollmux.checks import MAX_COUNT, Checks

BUFFERS = 2  # one that is computed on, one that is filled
SETTLED_PASS = 4  # by this pass the waiting in the first one has been made up for, as far as it ever is
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class JudgeModel:
    """A judge's shape. `other_bytes` (embeddings, head, workspace) are always on the device.

    Prefill of n tokens costs `dense_flops` × n + `attention_flops` × n² in each layer and holds `kv_bytes` × n.
    """

    layers: int
    layer_bytes: int
    dense_flops: float
    attention_flops: float = 0.0
    kv_bytes: int = 0
    other_bytes: int = 0

    def __post_init__(self) -> None:
        checks = Checks("judge_model")
        checks.whole("layers", self.layers, 1, 10_000, "count the layers of the model")
        checks.whole("layer_bytes", self.layer_bytes, 1, MAX_COUNT, "give the bytes of one layer's weights")
        checks.number("dense_flops", self.dense_flops, 1e-9, 1e24, "twice the parameters of a layer, for each token")
        checks.number("attention_flops", self.attention_flops, 0.0, 1e24, "for each pair of tokens in a layer")
        checks.whole("kv_bytes", self.kv_bytes, 0, MAX_COUNT, "give the bytes that a token holds during the pass")
        checks.whole("other_bytes", self.other_bytes, 0, MAX_COUNT, "give bytes, 0 where there is nothing else")
        checks.require()

    def layer_flops(self, tokens: int, batch: int) -> float:
        return batch * (self.dense_flops * tokens + self.attention_flops * tokens * tokens)


@dataclass(frozen=True, slots=True)
class JudgePlan:
    """Which layers stay and which are streamed; `compute_s` and `transfer_s` are for one pass over all layers.

    `first_pass_s` is for a pass that begins with empty buffers, `pass_s` for later passes, which find them filled.
    """

    resident: int
    streamed: tuple[int, ...]
    device_bytes: int
    compute_s: float
    transfer_s: float
    first_pass_s: float
    pass_s: float

    @property
    def exposed_s(self) -> float:
        """The part of a pass in which computation waits for weights."""
        return max(0.0, self.pass_s - self.compute_s)

    @property
    def hidden(self) -> bool:
        return self.exposed_s <= ROUNDING * self.compute_s


@dataclass(frozen=True, slots=True)
class JudgeRefused:
    """Not even two buffers fit beside what is always on the device."""

    needed_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class JudgeBudget:
    """A judge on a device with this host link and this rate of computation."""

    model: JudgeModel
    host_bytes_per_s: float
    flops_per_s: float

    def __post_init__(self) -> None:
        checks = Checks("judge_budget")
        checks.number("host_bytes_per_s", self.host_bytes_per_s, 1e-9, 1e18, "give the host link's measured rate")
        checks.number("flops_per_s", self.flops_per_s, 1e-9, 1e24, "give the rate that prefill reaches")
        checks.require()

    def plan(self, tokens: int, free_bytes: int, batch: int = 1) -> JudgePlan | JudgeRefused:
        """The budget for a pass over `batch` texts of so many tokens, with so many bytes free on the device."""
        checks = Checks("judge_pass")
        checks.whole("tokens", tokens, 1, 10**9, "give the judged length")
        checks.whole("free_bytes", free_bytes, 0, MAX_COUNT * 1000, "give the bytes that nobody else uses")
        checks.whole("batch", batch, 1, 10**6, "give the texts of one pass")
        checks.require()
        fixed = self.model.other_bytes + self.model.kv_bytes * tokens * batch
        most = self._most_resident(free_bytes - fixed)
        if most is None:
            needed = fixed + self.model.layer_bytes * min(BUFFERS, self.model.layers)
            return JudgeRefused(needed, free_bytes)
        layer_s = self.model.layer_flops(tokens, batch) / self.flops_per_s
        plan = self._with(self._fewest(layer_s, most), layer_s, fixed)
        while not plan.hidden and plan.resident < most:
            plan = self._with(plan.resident + 1, layer_s, fixed)
        return plan

    def _most_resident(self, room_bytes: int) -> int | None:
        slots = room_bytes // self.model.layer_bytes
        if slots >= self.model.layers:
            return self.model.layers
        return slots - BUFFERS if slots >= BUFFERS else None

    def _fewest(self, layer_s: float, most: int) -> int:
        """The fewest resident layers to try (`most` at most): with fewer, transfers alone would outlast the pass."""
        fetch_s = self.model.layer_bytes / self.host_bytes_per_s
        streamed = self.model.layers * layer_s / fetch_s * (1 + ROUNDING)
        return min(max(0, ceil(self.model.layers - streamed)), most)

    def _with(self, resident: int, layer_s: float, fixed_bytes: int) -> JudgePlan:
        model, fetch_s = self.model, self.model.layer_bytes / self.host_bytes_per_s
        streamed = spread(model.layers, model.layers - resident)
        first_s, later_s = pass_times(model.layers, streamed, layer_s, fetch_s)
        held = resident + min(BUFFERS, len(streamed))
        return JudgePlan(
            resident=resident,
            streamed=streamed,
            device_bytes=fixed_bytes + held * model.layer_bytes,
            compute_s=model.layers * layer_s,
            transfer_s=len(streamed) * fetch_s,
            first_pass_s=first_s,
            pass_s=later_s,
        )


def spread(layers: int, streamed: int) -> tuple[int, ...]:
    """Which layers to stream so that the resident ones between them are shared out evenly; a resident one first."""
    return tuple((place + 1) * layers // streamed - 1 for place in range(streamed))


def pass_times(
    layers: int, streamed: Sequence[int], layer_s: float, fetch_s: float, passes: int = SETTLED_PASS
) -> tuple[float, float]:
    """Seconds of the first and the last pass. A transfer begins when the one before is done and a buffer is empty."""
    waits_for = frozenset(streamed)
    clock = fetched = 0.0
    used = [0.0] * BUFFERS  # when the latest layers that went through the buffers were computed, oldest first
    ends = []
    for _ in range(passes):
        for layer in range(layers):
            if layer in waits_for:
                fetched = max(fetched, used[0]) + fetch_s
                clock = max(clock, fetched)
                used = [*used[1:], clock + layer_s]
            clock += layer_s
        ends.append(clock)
    return ends[0], ends[-1] - ends[-2]
