"""Watches state that is declared read-only: what was changed on the device must not get lost when it is let go of.

Torch counts changes of each tensor, but not those of fused optimizers, of `.data` or of numpy; so a sample of the
bytes, one word in each 64 KiB, is compared too. What no counter tells and no sample meets goes unnoticed.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

SAMPLE_WORDS = 8191  # words between two samples: odd, so that no regular pattern is in step with them


class Guard:
    """Remembers what was loaded."""

    def __init__(self, tensors: Mapping[str, Tensor], flat: Tensor) -> None:
        self._marks = {name: _mark(tensor) for name, tensor in tensors.items()}
        self._flat, self._sample = flat, _sample(flat).clone()

    def found(self, tensors: Mapping[str, Tensor]) -> str:
        """What has changed, if anything."""
        for name, tensor in tensors.items():
            if _mark(tensor) != self._marks.get(name):
                return f"{name!r} was changed, or put elsewhere"
        return "" if torch.equal(_sample(self._flat), self._sample) else "something was changed past torch's counters"


def _mark(tensor: Tensor) -> tuple[int, int, tuple[int, ...]]:
    try:
        counted = tensor._version
    except RuntimeError:  # made in inference mode: no counter, even if its data was replaced and it denies that
        counted = 0
    return tensor.data_ptr(), counted, tuple(tensor.shape)


def _sample(flat: Tensor) -> Tensor:
    return flat.view(torch.int64)[::SAMPLE_WORDS]
