"""The two ways between a flat piece of device memory and what is kept on the host, and changes on the host alone."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil

import torch
from torch import Tensor

from rollmux.runtime.host.errors import Unfit
from rollmux.runtime.residency.checksum import UNSUMMED, ZEROS, checksum
from rollmux.runtime.residency.kept import Kept
from rollmux.runtime.residency.layout import ALIGN_BYTES, BEGINNING_BYTES, CHUNK_BYTES, Layout, Place, Survey
from rollmux.runtime.residency.memory import Memory
from rollmux.runtime.residency.passing import are_same, copy_summed, in_threads, is_zero, same
from rollmux.runtime.residency.record import Record, require_fit
from rollmux.runtime.residency.sending import AHEAD, Sending
from rollmux.runtime.residency.stretches import runs, stretch
from rollmux.runtime.residency.transfer import finished


def bring(kept: Kept, flat: Tensor, memory: Memory, meanwhile: Callable[[], object]) -> int:
    """Loads the newest version; returns its number. `meanwhile` is done while copies are under way."""
    clear: Callable[[Tensor], object] = memory.clear
    while True:
        record = kept.refresh()
        with finished(memory.transfer()) as transfer:
            for run in runs(range(kept.host.layout.chunks), kept.place, memory.window):
                target = stretch(flat, run)
                if kept.is_zero(run.start):
                    clear(target)
                else:
                    transfer.load(target, kept.current(run.start, len(run)))
            meanwhile()
        # A writer of two versions meanwhile writes over what is read here: then all is read once more.
        if kept.refresh() == record:
            return record.version
        clear = Tensor.zero_  # this memory is not new any more


def save(
    kept: Kept, seen: Survey, flat: Tensor | None, memory: Memory, notes: bytes | None, aside: bytes = b""
) -> None:
    """Writes what differs as a new version. If nothing does, and no notes came, the version stays."""
    with kept.writing(seen.layout):
        if not seen.at_home or flat is None:
            changed = _gathered(kept, seen, memory)
        elif not memory.copies_itself:
            changed = _in_passing(kept, flat, memory)
        else:
            sending = Sending(kept, flat, memory)
            try:
                sending.begin(0)
            finally:
                sending.finish()
            changed = sending.changed
        _commit(kept, _drafted(kept, changed, notes, aside))


def save_early(
    kept: Kept,
    flat: Tensor,
    memory: Memory,
    notes: bytes | None,
    look: Callable[[], tuple[Survey, bytes]],
    leave: Callable[[], object],
) -> bool:
    """The same as `save`, but the processor does its part while copies are under way: it looks where the state is, and
    calls `leave` if all of it is in `flat`. False: the state is elsewhere, and no version is written.

    There must be two slots, and a version in one of them: it holds until the end.
    """
    with kept.writing():
        sending = Sending(kept, flat, memory)
        try:
            sending.begin(AHEAD)
            seen, aside = look()
            draft = _drafted(kept, sending.changed, notes, aside)
            if seen.at_home:
                leave()
        finally:
            sending.finish()
        if seen.at_home:
            _commit(kept, draft)
    return seen.at_home


def _drafted(kept: Kept, changed: Mapping[int, bytes], notes: bytes | None, aside: bytes) -> Record | None:
    """The next version, if anything differs."""
    if changed or notes is not None or aside != kept.aside or not kept.whole:
        return kept.drafted(changed, notes, aside)
    return None


def _commit(kept: Kept, draft: Record | None) -> None:
    if draft is not None:
        kept.commit(draft)


def _in_passing(kept: Kept, flat: Tensor, memory: Memory) -> dict[int, bytes]:
    """Copies chunks that differ from the host's, and gives their checksums, made during the copy if at all."""
    sources = kept.host.layout.split(flat)

    def passed(chunk: int) -> bytes | None:
        source, known = sources[chunk], kept.sum_of(chunk)
        if is_zero(source):
            return ZEROS if known != ZEROS else None
        if known not in (None, ZEROS) and same(source, kept.current(chunk)):
            return None
        return copy_summed(kept.target(chunk), source) if kept.sums else UNSUMMED

    changed = {} if kept.sums else dict.fromkeys(_plainly_changed(kept, flat), UNSUMMED)
    rest = [chunk for chunk in range(len(sources)) if chunk not in changed]
    found = in_threads(passed, rest, torch.get_num_threads())
    changed |= {chunk: each for chunk, each in zip(rest, found, strict=True) if each is not None}
    transfer = memory.transfer()
    copied = sorted(chunk for chunk, each in changed.items() if each == UNSUMMED)
    for run in runs(copied, kept.next_slot, memory.window):
        transfer.save(kept.target(run.start, len(run)), stretch(flat, run))
    transfer.finish()
    return changed


def _plainly_changed(kept: Kept, flat: Tensor) -> Iterator[int]:
    """Chunks whose first bytes tell that they differ from the host's, and are not zeros.

    One thread asks for all: threads that each ask wait for one another. Two took three times as long as one, which was
    a tenth of an offload.
    """
    data, zeros = flat.numpy().data, bytes(BEGINNING_BYTES)
    for chunk in range(kept.host.layout.chunks):
        at = chunk * CHUNK_BYTES
        beginning = bytes(data[at : at + BEGINNING_BYTES])
        if beginning not in (zeros, kept.beginning(chunk)):
            yield chunk


def _gathered(kept: Kept, seen: Survey, memory: Memory) -> dict[int, bytes]:
    """Copies the whole state, from wherever its parts lie, and gives the checksums."""
    with finished(memory.transfer()) as transfer:
        for unit, source in zip(seen.layout.units, seen.sources, strict=True):
            for chunk, inside, part in _pieces(unit.at, unit.nbytes):
                transfer.save(kept.target(chunk)[inside], source[part])
    return {chunk: _told(kept, chunk) for chunk in range(seen.layout.chunks)}


def _told(kept: Kept, chunk: int) -> bytes:
    """The checksum that the record gets for a chunk that was written."""
    written = kept.target(chunk)
    if kept.sums:
        return checksum(written)
    return ZEROS if is_zero(written) else UNSUMMED


def change(kept: Kept, values: Mapping[str, Tensor], notes: bytes | None, names: Mapping[str, str]) -> None:
    """Writes new values for some tensors as a new version. `names` leads from other names to those here."""
    layout = kept.host.layout
    own = {place.name: place for place in layout.places}
    places = {name: own[first] for name, first in names.items() if first in own} | own
    unknown = sorted(set(values) - set(places))
    if unknown:
        raise Unfit(f"{unknown[0]!r} is not in the state {kept.host.path.stem!r}: it holds {sorted(own)[:3]} and so on")
    require_fit(notes)
    # What can't be taken is refused here: with one slot there is no version from the first byte written to the commit.
    given = _given(places, values)
    with kept.writing():
        kept.refresh()
        touched = {chunk for place in given for chunk in _chunks_of(layout, place)}
        for chunk in touched:
            kept.take_over(chunk)
        for place, value in given.items():
            _write(kept, place, value)
        kept.commit(kept.drafted({chunk: _told(kept, chunk) for chunk in sorted(touched)}, notes))


def _given(places: Mapping[str, Place], values: Mapping[str, Tensor]) -> dict[Place, Tensor]:
    """One value for each place that has elements. Values that contradict each other are refused."""
    given = dict[Place, tuple[str, Tensor]]()
    for name, value in values.items():
        fitted, memory = _fitted(places[name], value), replace(places[name], name="")  # a place may have several
        first, same_value = given.setdefault(memory, (name, fitted))
        if not are_same(getattr(torch, memory.dtype), same_value, fitted):
            raise Unfit(f"{name!r} has other values than {first!r}, which it is tied to; give the same, or one")
    given = {place: (name, value) for place, (name, value) in given.items() if value.numel()}
    for some in _overlapping(given):
        _require_one_value({place: given[place] for place in some})
    return {place: value for place, (_, value) in given.items()}


def _overlapping(places: Iterable[Place]) -> list[list[Place]]:
    """Groups of places of which one begins before another ends: they may have elements in common."""
    found, end = list[list[Place]](), (0, 0)
    for place in sorted(places, key=lambda place: (place.unit, _extent(place))):
        first, last = _extent(place)
        if not found or (place.unit, first) >= end:
            found.append([])
        found[-1].append(place)
        end = max(end, (place.unit, last))
    return [some for some in found if len(some) > 1]


def _require_one_value(given: Mapping[Place, tuple[str, Tensor]]) -> None:
    """Elements that several tensors share must get one value: all values are written to a trial, and must read back."""
    firsts, lasts = zip(*map(_extent, given), strict=True)
    start, end = min(firsts) // ALIGN_BYTES, ceil(max(lasts) / ALIGN_BYTES)
    written = torch.empty((end - start) * ALIGN_BYTES, dtype=torch.uint8)

    def there(place: Place) -> Tensor:
        typed = written.view(getattr(torch, place.dtype))
        return torch.as_strided(typed, place.size, place.stride, place.offset - start * ALIGN_BYTES // typed.itemsize)

    for place, (_, value) in given.items():
        there(place).copy_(value)
    for place, (name, value) in given.items():
        if not are_same(getattr(torch, place.dtype), there(place), value):
            others = sorted(other for other, _ in given.values() if other != name)
            raise Unfit(
                f"{name!r} shares memory with some of {others[:3]}, and has other values there; give one of them"
            )


def _fitted(place: Place, value: Tensor) -> Tensor:
    """A tensor that can be copied from: the value itself, or its content if it is no plain tensor."""
    if tuple(value.shape) != place.size:
        raise Unfit(f"{place.name!r} has the shape {place.size}, not {tuple(value.shape)}; give all of it")
    if value.numel() and _overlaps(place):
        raise Unfit(f"{place.name!r} has elements that share memory; update the tensor that it is a view of")
    value = value.detach()
    is_plain = type(value) is Tensor and value.layout is torch.strided
    # Of a plain tensor only the first element is tried, so that a whole model from a device is not twice on the host.
    tried = value[(slice(1),) * value.dim()] if is_plain else value
    try:
        copy = torch.empty(tried.shape, dtype=getattr(torch, place.dtype)).copy_(tried)
    except RuntimeError as error:
        what = f"{value.layout} on {value.device}"
        raise Unfit(f"the value of {place.name!r} is {what}, and has no data that can be copied: {error}") from error
    return value if is_plain else copy


def _overlaps(place: Place) -> bool:
    """Whether elements share memory: the step of some dimension is shorter than what lies within that dimension."""
    span = 1
    for step, count in sorted(zip(place.stride, place.size, strict=True)):
        if count > 1 and step < span:
            return True
        span += (count - 1) * step
    return False


def note(kept: Kept, notes: bytes) -> None:
    """Writes a new version of which only the notes are new."""
    with kept.writing():
        kept.refresh()
        kept.commit(kept.drafted({}, notes))


def _write(kept: Kept, place: Place, value: Tensor) -> None:
    unit = kept.host.layout.units[place.unit]
    first, last = _extent(place)
    bytes_of_it = torch.empty(last - first, dtype=torch.uint8)
    for chunk, inside, part in _pieces(unit.at + first, last - first):
        bytes_of_it[part] = kept.target(chunk)[inside]
    typed = bytes_of_it.view(getattr(torch, place.dtype))
    torch.as_strided(typed, place.size, place.stride).copy_(value)
    for chunk, inside, part in _pieces(unit.at + first, last - first):
        kept.target(chunk)[inside] = bytes_of_it[part]


def _extent(place: Place) -> tuple[int, int]:
    """The bytes of a unit that a tensor spans."""
    size = getattr(torch, place.dtype).itemsize
    span = sum((count - 1) * step for count, step in zip(place.size, place.stride, strict=True)) + 1
    return place.offset * size, (place.offset + span) * size


def _chunks_of(layout: Layout, place: Place) -> Sequence[int]:
    first, last = _extent(place)
    at = layout.units[place.unit].at
    return range((at + first) // CHUNK_BYTES, (at + last - 1) // CHUNK_BYTES + 1)


def _pieces(at: int, nbytes: int) -> Iterator[tuple[int, slice, slice]]:
    """Each chunk that a stretch of the flat memory meets: its number, where in it, and which part of the stretch."""
    done = 0
    while done < nbytes:
        chunk, inside = divmod(at + done, CHUNK_BYTES)
        size = min(nbytes - done, CHUNK_BYTES - inside)
        yield chunk, slice(inside, inside + size), slice(done, done + size)
        done += size
