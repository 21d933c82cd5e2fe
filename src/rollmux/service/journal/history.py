"""How much of the past is kept: from which image on the records stay, and which images are of use.

A restart needs the last image and the records after it, and the image before, in case the last is damaged. All older
records are there to be read (`rollmux journal`), and can only be played from an image: so the oldest follow an image.
"""

from collections.abc import Sequence

# Images that a restart may need.
KEPT_IMAGES = 2
# Records that are kept to be read: half a minute to play again, and some 300 MB with 100 jobs. Where phases are long
# most of them are signs of life, four a second, of 2.5 KB each with 1,000 jobs.
KEEP_RECORDS = 1_000_000
# Older images lie at least so far apart: the records that are kept, divided by this.
PARTS = 8
# Records that are removed in one transaction: a write waits for one such transaction at most.
PORTION = 500


def history(images: Sequence[int], begins: int, keep: int) -> tuple[int, list[int]]:
    """After which record the history is to begin, and the images to keep, of all those there are (by their numbers)."""
    latest = images[-KEPT_IMAGES:]
    if len(latest) == KEPT_IMAGES:
        oldest = min(latest[-1] - keep, latest[0])
        begins = max([begins, *(seq for seq in images if seq <= oldest)])
    kept: list[int] = []
    for seq in images:
        far = seq - (kept[-1] if kept else begins) >= max(1, keep // PARTS)
        if seq >= begins and (seq == begins or far or seq in latest):
            kept.append(seq)
    return begins, kept
