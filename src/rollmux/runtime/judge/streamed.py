"""The layers of a model, of which some stay on the device and the others pass through two buffers.

All layers lie in host memory for good; parameters are empty while their layer is not on the device. Invariant: a layer
that is handed out for computing is whole in device memory, and its buffer is not written again before the computing
with it is done.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from rollmux.packer.judge import BUFFERS
from rollmux.runtime.engine.anatomy import Layer
from rollmux.runtime.engine.errors import EngineClosed, UnsupportedModel
from rollmux.runtime.host import Claim
from rollmux.runtime.residency import Memory
from rollmux.runtime.residency.transfer import Transfer

_ALIGN_BYTES = 512
NONE = -1  # instead of a layer's number


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where a parameter lies within the piece of its layer."""

    at: int
    nbytes: int
    shape: torch.Size


class StreamedLayers:
    """A forward iterates over it, layer by layer. `weights` are the modules with the parameters, one for each layer.

    `claim` asks the node for the host memory in which all layers lie.
    """

    def __init__(
        self, weights: Sequence[nn.Module], memory: Memory, claim: Callable[[int], Claim] | None = None
    ) -> None:
        self._parameters = [list(module.parameters()) for module in weights]
        self._dtype = self._parameters[0][0].dtype
        self._slots = _slots(self._parameters[0])
        for number in range(len(self)):
            self._require_alike(number)
        self.layer_bytes = self._slots[-1].at + _aligned(self._slots[-1].nbytes)
        self._memory = memory
        self._layers: Sequence[Layer] = ()
        nbytes = len(weights) * self.layer_bytes
        self._claim = claim(nbytes + memory.staging_bytes) if claim is not None else None
        self._at_end = weakref.finalize(self, _forsake, memory, self._claim)
        self._host = torch.empty(nbytes, dtype=torch.uint8)
        memory.pin(self._host)
        self._take()
        self._device: Tensor | None = None
        self._is_freed = True  # `_memory` has said that it has back what was let go of
        self._streamed: tuple[int, ...] | None = None
        self._held: list[int] = []  # the layer that each buffer has or is getting
        self._coming: dict[int, Transfer] = {}

    def __len__(self) -> int:
        return len(self._parameters)

    @property
    def device_bytes(self) -> int:
        return 0 if self._device is None else self._device.nbytes

    def show(self, layers: Sequence[Layer]) -> None:
        """Takes the layers as the engine has them: iterating gives these out."""
        self._layers = layers

    def arrange(self, streamed: Sequence[int]) -> None:
        """Streams these layers from now on; all others stay on the device."""
        if not self._at_end.alive:
            raise EngineClosed("the layers were given back: load the model anew")
        if self._streamed == tuple(streamed):
            return
        self.release()
        self._held = list(streamed[:BUFFERS])
        held = [*self._held, *(number for number in range(len(self)) if number not in streamed)]
        self._device = self._memory.allocate(len(held) * self.layer_bytes)
        transfer = self._memory.transfer()
        for place, number in enumerate(held):
            self._bind(number, place)
            transfer.load(self._piece(place), self._on_host(number))
        transfer.finish()
        self._streamed = tuple(streamed)  # only once all are there: if this breaks off, it is done anew

    def release(self) -> None:
        """Gives all device memory back; `arrange` takes it again. Raises NotFreed for as long as others hold it."""
        if self._device is not None:
            self._let_go(self._device)
        if not self._is_freed:
            self._memory.release()
            self._is_freed = True

    def _let_go(self, device: Tensor) -> None:
        while self._coming:  # until nothing looks at the device's memory any more
            self._coming.popitem()[1].finish()
        self._memory.expect(device.nbytes, device.data_ptr())
        for number in range(len(self)):
            self._empty(number)
        self._held, self._streamed, self._device = [], None, None
        self._is_freed = False

    def undo(self) -> None:
        """Ends the streaming: all layers are whole again, in host memory."""
        self.release()
        host = self._host
        self.close()
        self._host = host
        for number in range(len(self)):
            self._bind_to(number, self._on_host(number))

    def close(self) -> None:
        """Gives host memory back, too; the layers can't be used any more."""
        self.release()
        self._at_end.detach()
        self._memory.unpin()
        self._host = torch.empty(0, dtype=torch.uint8)
        if self._claim is not None:
            self._claim.release()

    def __iter__(self) -> Iterator[Layer]:
        streamed = self._streamed or ()
        for number, layer in enumerate(self._layers):
            if number not in streamed:
                yield layer
                continue
            self._wait_for(number)
            yield layer
            # On the device, the copy that begins now waits for all that was computed up to here.
            after = streamed[(streamed.index(number) + BUFFERS) % len(streamed)]
            if after not in self._held:
                self._fetch(after, self._held.index(number))

    def _wait_for(self, number: int) -> None:
        if number not in self._held:  # the pass before this one broke off in the middle
            self._fetch(number, 0)
        transfer = self._coming.pop(number, None)
        if transfer is not None:
            transfer.finish()

    def _fetch(self, number: int, buffer: int) -> None:
        replaced = self._coming.pop(self._held[buffer], None)
        if replaced is not None:
            replaced.finish()
        if self._held[buffer] != NONE:
            self._empty(self._held[buffer])
        self._held[buffer] = NONE
        transfer = self._memory.transfer()
        transfer.load(self._piece(buffer), self._on_host(number))
        self._held[buffer] = number
        self._bind(number, buffer)
        self._coming[number] = transfer

    def _take(self) -> None:
        """Copies the weights into host memory, and empties the parameters."""
        for number in range(len(self)):
            piece = self._on_host(number)
            for parameter, view in zip(self._parameters[number], self._views(piece), strict=True):
                view.copy_(parameter.detach())
            self._empty(number)

    def _empty(self, number: int) -> None:
        for parameter in self._parameters[number]:
            parameter.data = torch.empty(0, dtype=self._dtype, device=self._memory.device)

    def _bind(self, number: int, place: int) -> None:
        self._bind_to(number, self._piece(place))

    def _bind_to(self, number: int, piece: Tensor) -> None:
        for parameter, view in zip(self._parameters[number], self._views(piece), strict=True):
            parameter.data = view

    def _require_alike(self, number: int) -> None:
        parameters = self._parameters[number]
        if _slots(parameters) != self._slots or any(each.dtype != self._dtype for each in parameters):
            raise UnsupportedModel(
                f"layer {number} is not like the first: all of a judge's are to have one form and type"
            )

    def _views(self, piece: Tensor) -> list[Tensor]:
        return [piece[slot.at : slot.at + slot.nbytes].view(self._dtype).view(slot.shape) for slot in self._slots]

    def _on_host(self, number: int) -> Tensor:
        return self._host[number * self.layer_bytes : (number + 1) * self.layer_bytes]

    def _piece(self, place: int) -> Tensor:
        assert self._device is not None
        return self._device[place * self.layer_bytes : (place + 1) * self.layer_bytes]


def _forsake(memory: Memory, claim: Claim | None) -> None:
    """Gives memory and claim back for an owner that went without closing."""
    memory.unpin()
    if claim is not None:
        claim.forsake()


def _slots(parameters: Sequence[Any]) -> list[_Slot]:
    sizes = [_aligned(parameter.nbytes) for parameter in parameters]
    starts = accumulate(sizes[:-1], initial=0)
    return [_Slot(at, each.nbytes, each.shape) for at, each in zip(starts, parameters, strict=True)]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGN_BYTES) * _ALIGN_BYTES
