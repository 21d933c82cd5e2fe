"""A piece as a delta, which says what changed in it: lossless, since the new words themselves are sent.

Layout: how many words changed in each block of 65,536 (4 bytes a block), where in its block each lies (2 bytes), the
new words. After an update with a small learning rate most words of 2 bytes keep their value, and a changed one costs 4.
"""

import numpy as np

from rollmux.runtime.sync.errors import Broken
from rollmux.runtime.sync.generation import Words

_BLOCK = 1 << 16
# A delta above this share of the plain bytes is not worth the time that it takes to apply it.
WORTH = 0.75


def changes(new: Words, old: Words) -> bytes | None:
    """The delta from old to new, or None if it is too long to be worth it. Both are flat and of one type."""
    places = np.flatnonzero(new != old)
    blocks = -(-new.size // _BLOCK)
    if 4 * blocks + places.size * (2 + new.itemsize) > WORTH * new.nbytes:
        return None
    counts = np.bincount(places // _BLOCK, minlength=blocks).astype("<u4")
    return counts.tobytes() + (places % _BLOCK).astype("<u2").tobytes() + new[places].tobytes()


def apply(delta: memoryview, words: Words) -> None:
    """Makes old words new ones. A delta that doesn't fit raises, and the words are of no more use."""
    blocks = -(-words.size // _BLOCK)
    whole = len(delta) >= 4 * blocks
    counts = np.frombuffer(delta[: 4 * blocks if whole else 0], "<u4")
    many = int(counts.sum(dtype=np.uint64))
    if not whole or len(delta) != 4 * blocks + many * (2 + words.itemsize):
        raise Broken(f"a delta of {len(delta)} bytes doesn't fit {words.size} words: the sender is of another version")
    within = np.frombuffer(delta[4 * blocks : 4 * blocks + 2 * many], "<u2")
    places = np.repeat(np.arange(blocks, dtype=np.int64) * _BLOCK, counts) + within
    if many and int(places.max()) >= words.size:
        raise Broken(f"a delta changes word {int(places.max())} of {words.size}: the sender is of another version")
    words[places] = np.frombuffer(delta[4 * blocks + 2 * many :], words.dtype)
