"""A record that was broken off in the middle was never there."""

from hypothesis import given
from hypothesis import strategies as st

from rollmux.runtime.residency.record import Record, unpacked


@given(st.integers(1, 40), st.binary(max_size=30), st.binary(max_size=30), st.data())
def test_a_record_written_over_an_older_one_is_whole_or_does_not_count(
    chunks: int, notes: bytes, aside: bytes, data: st.DataObject
) -> None:
    old = Record(3, 77, bytes(chunks), bytes(range(16)) * chunks, b"old", b"and aside")
    new = Record(5, 77, bytes([1]) * chunks, bytes(range(16, 32)) * chunks, notes, aside)
    before, after = old.packed().ljust(1000, b"\0"), new.packed()
    cut = data.draw(st.integers(0, len(after)))
    found = unpacked(after[:cut] + before[cut:], 77)
    assert found in {0: (old,), len(after): (new,)}.get(cut, (old, new, None))
    if 12 < cut < len(after) - 15:
        assert found is None
    assert unpacked(after.ljust(1000, b"\0"), 78) is None
