"""The `slots` engine: continuous batching of a Hugging Face causal model over preallocated pages of keys and values.

The weights stay the caller's. Tell each change by `update`: after an untold one, tokens get a false version, and an
engine with a packed copy (`projections.py`) goes on with the old weights.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from rollmux.checks import Checks
from rollmux.errors import InvariantViolated
from rollmux.runtime.engine.anatomy import anatomy
from rollmux.runtime.engine.desk import Work
from rollmux.runtime.engine.forward import Forward, ordered
from rollmux.runtime.engine.local import Drawn, Limits, LocalEngine
from rollmux.runtime.engine.sampling import sample
from rollmux.runtime.residency.memory import Memory, memory_of
from rollmux.runtime.residency.passing import are_same

MOVED_AT_ONCE = 16  # pages; meanwhile so many are held twice
LEAST_ITEM = 2  # bytes of a weight: smaller ones are scaled by numbers kept elsewhere


def slots(model: Any, limits: Limits, version: int = 0, packed: bool | None = None) -> LocalEngine:
    """An engine over a model's own parameters. `packed`: keeps a copy with which a CPU computes faster."""
    return LocalEngine(_Slots(model, limits, packed), limits, version)


class _Slots:
    """See `rollmux.runtime.engine.local.Compute`."""

    def __init__(self, model: Any, limits: Limits, packed: bool | None) -> None:
        self._model = model
        self._anatomy = anatomy(model, packed)
        self._limits = limits
        self._forward: Forward | None = None
        self._memory: Memory | None = None  # tells whether memory that was let go of is the device's again
        self._is_freed = False  # `_memory` has said that it is
        self._hold()

    def _hold(self) -> None:
        limits = self._limits
        length = min(limits.max_length, self.max_length)
        pages = limits.room_tokens // limits.page_tokens
        with torch.inference_mode():
            self._forward = Forward(self._anatomy, pages, limits.page_tokens, length)

    @property
    def max_length(self) -> int:
        return self._anatomy.max_length

    @property
    def vocabulary(self) -> int:
        return self._anatomy.vocabulary

    @property
    def nbytes(self) -> int:
        packed = sum(projection.nbytes for projection in self._anatomy.projections)
        return packed + (self._forward.nbytes if self._forward else 0)

    @torch.inference_mode()
    def run(self, work: Sequence[Work], used_pages: int) -> list[Drawn | None]:
        forward = self._require()
        order = ordered(work)
        taken = [work[place] for place in order]
        due = [number for number, (live, count) in enumerate(taken) if live.owed == count]
        stops = list(accumulate(count for _, count in taken))
        logits = forward(forward.layout(taken, [stops[number] - 1 for number in due], used_pages))
        drawn: list[Drawn | None] = [None] * len(work)
        if due:
            lives = [taken[number][0] for number in due]
            tokens = sample(logits, [(live.request, len(live.tokens)) for live in lives])
            for number, token in zip(due, tokens, strict=True):
                drawn[order[number]] = token
        return drawn

    def _require(self) -> Forward:
        if self._forward is None:
            raise InvariantViolated("KV room", "its memory was given back: resume first")
        return self._forward

    @torch.inference_mode()
    def move(self, sources: list[int], targets: list[int]) -> None:
        forward = self._require()
        for start in range(0, len(sources), MOVED_AT_ONCE):
            piece = slice(start, start + MOVED_AT_ONCE)
            for side in (forward.keys, forward.values):
                side[:, targets[piece]] = side[:, sources[piece]]

    @torch.inference_mode()
    def copy(self, sources: list[int], targets: list[int], tokens: int) -> None:
        forward = self._require()
        whole, rest = divmod(tokens, self._limits.page_tokens)
        for side in (forward.keys, forward.values):
            side[:, targets[:whole]] = side[:, sources[:whole]]
            if rest:
                side[:, targets[whole], :, :rest] = side[:, sources[whole], :, :rest]

    @torch.inference_mode()
    def wipe(self, pages: list[int]) -> None:
        forward = self._require()
        places = torch.tensor(pages, device=forward.keys.device)
        for side in (forward.keys, forward.values):
            side.index_fill_(1, places, 0)

    def check(self, weights: Mapping[str, Any]) -> None:
        known = dict(self._model.named_parameters(remove_duplicate=False))
        checks = Checks("weights")
        given: dict[int, tuple[str, Tensor]] = {}  # for each parameter, by its first name
        for name, weight in weights.items():
            if name not in known:
                checks.report(name, name, "the name of a parameter", "give names as `named_parameters` has them")
            elif not isinstance(weight, Tensor) or weight.is_meta or weight.shape != known[name].shape:
                wanted = f"a tensor of shape {tuple(known[name].shape)} with data"
                checks.report(name, tuple(getattr(weight, "shape", ())), wanted, "reshape it")
            elif weight.layout is not torch.strided or not weight.is_floating_point() or weight.itemsize < LEAST_ITEM:
                held = f"{weight.dtype} in {weight.layout}"
                checks.report(name, held, "dense, in floating point of 16 bits at least", "give it unquantised")
            else:
                first, value = given.setdefault(id(known[name]), (name, weight))
                if not are_same(known[name].dtype, value, weight):
                    checks.report(
                        name, "other numbers", f"those of {first}, which it is tied to", "give the same or one"
                    )
        checks.require()

    def load(self, weights: Mapping[str, Any] | None) -> None:
        if weights:
            known = dict(self._model.named_parameters(remove_duplicate=False))
            with torch.no_grad():
                for name, weight in weights.items():
                    known[name].copy_(weight)
        if self._forward is not None:
            self._refresh()

    def _refresh(self) -> None:
        for projection in self._anatomy.projections:
            projection.refresh()

    def release(self) -> None:
        if self._forward is not None or self.nbytes:
            self._let_go()
        if self._memory is not None and not self._is_freed:
            self._memory.release()
            self._is_freed = True

    def _let_go(self) -> None:
        device = self._anatomy.device if self._forward is None else self._forward.keys.device
        if self._memory is None or self._memory.device != device:
            self._memory = memory_of(device)
        self._memory.expect(self.nbytes, None)
        self._is_freed = False
        for projection in self._anatomy.projections:
            projection.release()
        self._forward = None

    def restore(self) -> None:
        self._refresh()
        if self._forward is None:
            self._hold()
