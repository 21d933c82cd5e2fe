"""What the driver of NVIDIA's GPUs says of memory, whoever allocated it. Torch does not hand this on."""

import ctypes
from contextlib import suppress
from functools import cache

SUCCESS, INVALID_VALUE = 0, 1  # CUresult
BUFFER_ID = 7  # CU_POINTER_ATTRIBUTE_BUFFER_ID: unique in the life of a process


def allocation(address: int) -> int | None:
    """The number of the allocation that an address lies in, which no other ever has. None: it lies in none, or there is
    no driver to be asked."""
    driver = _driver()
    if driver is None:
        return None
    number = ctypes.c_ulonglong()
    code = driver.cuPointerGetAttribute(ctypes.byref(number), BUFFER_ID, ctypes.c_ulonglong(address))
    if code not in (SUCCESS, INVALID_VALUE):
        raise RuntimeError(f"the driver does not tell what lies at {address:#x}: CUDA error {code}")
    return number.value if code == SUCCESS else None


@cache
def _driver() -> ctypes.CDLL | None:
    with suppress(OSError):
        return ctypes.CDLL("libcuda.so.1")
    return None
