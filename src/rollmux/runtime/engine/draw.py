"""Randomness that depends on nothing but a request's seed and the place of the token.

Invariant: a draw is the same in every engine, batch, process and machine, so a response can be continued anywhere.
"""

from hashlib import blake2b
from struct import Struct

_PLACE = Struct("<QQ")


def uniform(seed: int, position: int) -> float:
    """A number above 0 and below 1, one of 2^52."""
    digest = blake2b(_PLACE.pack(seed, position), digest_size=8).digest()
    return ((int.from_bytes(digest, "little") >> 12) + 0.5) / 2**52
