"""Sums that a GPU makes of its own memory, on their way to the host while large copies are under way.

If the sums were copied, they would wait behind those copies. So a kernel writes them into pinned memory, which has one
address for host and device. It writes all in one go, for sums that cross the link one by one hold the copies up.
"""

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from rollmux.runtime.residency.checksum import LINE, LINE_BYTES, sums_of

log = logging.getLogger("rollmux")


class Sheet:
    """Pinned memory for the sums of so many chunks."""

    def __init__(self, chunks: int, device: torch.device) -> None:
        with torch.cuda.device(device):  # then pinned memory is this device's, too
            self._host = torch.empty((chunks, LINE), dtype=torch.int64, pin_memory=True)
            self._device = torch.as_tensor(_Mapped(self._host), device=device)
        if self._device.data_ptr() != self._host.data_ptr():
            raise ValueError("torch made a copy: to it this memory is another device's")

    @staticmethod
    def size(chunks: int) -> int:
        """The bytes that a sheet takes: torch pins powers of two."""
        return 1 << (chunks * LINE_BYTES - 1).bit_length()

    def take(self, sums: Tensor) -> Callable[[], Tensor]:
        """Has the device write these sums here. The function that it returns waits for them, and gives them."""
        torch.bitwise_or(sums, 0, out=self._device[: len(sums)])  # a kernel, while `copy_` is a copy
        there = torch.cuda.current_stream(sums.device).record_event()

        def arrived() -> Tensor:
            there.synchronize()
            return self._host[: len(sums)]

        return arrived


class Sheets:
    """One sheet for sums that are being read, one for those that come. None at all if the device can't write there."""

    def __init__(self, chunks: int, device: torch.device) -> None:
        self._both: list[Sheet] = []
        try:
            self._both = [Sheet(chunks, device) for _ in range(2)]
        except (RuntimeError, TypeError, ValueError) as error:
            log.warning("%s: sums are copied to the host, which makes offloads slower: %s", device, error)

    def sums(self, data: Tensor, room: Tensor) -> Callable[[], Tensor]:
        """Asks for the sums of data on the device, which are made in `room` there."""
        sums = sums_of(data, room)
        if not self._both:
            return sums.cpu
        self._both.reverse()
        return self._both[0].take(sums)


class _Mapped:
    """Pinned memory that presents itself as memory of the GPU: both have one address."""

    def __init__(self, host: Tensor) -> None:
        self.host = host
        self.__cuda_array_interface__ = {
            "shape": tuple(host.shape),
            "typestr": "<i8",
            "data": (host.data_ptr(), False),
            "version": 3,
        }
