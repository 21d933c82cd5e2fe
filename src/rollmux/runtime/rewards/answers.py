"""What math-verify is given to compare, and how closely: few rules around it, for texts before and for readings after.

Invariant: a rule makes two ways to write one answer the same, and never two answers.
"""

import re
from collections.abc import Iterator, Sequence
from math import floor
from typing import Any

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
# Commands, subscripts, and what is named by its points: the AB of `|AB| =`.
_NO_WORD = re.compile(r"\\[A-Za-z]+|_\{(?:\\\w+\{)?[^{}]*\}|(?<![A-Za-z])[A-Z]{2,}(?=[]})|\s]*=)")
_WORD = re.compile(r"[^\W\d_]{2,}")
_WORDS = re.compile(r"(?:\\(?:text|mathrm|mbox)\w*\s*\{)?\s*([A-Za-z]{2,}(?: +[A-Za-z]{2,})*)\s*\}?")
_LETTERS = 3  # at least, of a word
_AROUND = re.compile(r"[\s$]|\\?[][(){}]")
_BLANK = re.compile(r"(?<!\\)\\[ ,;:]|~(?!=)")
_FULL_STOP = re.compile(r"(?<!\.)\.(?=\s*(?:\}|$))")
_THOUSANDS = re.compile(r"(?<![\w.,^/\\}])(?<![A-Za-z] )[1-9]\d{0,2}(?: \d{3})+(?!\w)")
_MIXED = re.compile(r"(?<![\w.,^/\\}])(?<!frac )(\d{1,9}) (\d{1,9})/(\d{1,9})(?![\w./^])")
_DIGITS = 6  # that count, of a number
_LEAST_PRECISION = 15  # math-verify's own


def spelled(text: str) -> str:
    """The last box alone, LaTeX's blanks as blanks, `1 234` as 1234, `7 3/4` as 31/4, and without a full stop."""
    text = _FULL_STOP.sub("", _BLANK.sub(" ", _last_boxes(text)))
    return _MIXED.sub(_fraction, _THOUSANDS.sub(lambda found: found[0].replace(" ", ""), text))


def _fraction(mixed: re.Match[str]) -> str:
    whole, part, parts = map(int, mixed.groups())
    return f"{whole * parts + part}/{parts}" if part < parts else mixed[0]


def _last_boxes(text: str) -> str:
    """And those before it between which no word stands but `and` and `or`: they are one answer."""
    before, *boxes = _BOX.split(text)
    apart = [number for number, box in enumerate(boxes[:-1], 1) if _has_words(_halves(box)[1])]
    return "\\boxed{".join(["", *boxes[apart[-1] :]] if apart else [before, *boxes])


def _has_words(between: str) -> bool:
    return not {"and", "or"}.issuperset(_WORD.findall(_NO_WORD.sub(" ", between).lower()))


def _halves(box: str) -> tuple[str, str]:
    """What stands in it, and what behind it."""
    within = 1
    for at, letter in enumerate(box):
        within += (letter == "{") - (letter == "}")
        if not within:
            return box[:at], box[at + 1 :]
    return box, ""


def words(text: str) -> str | None:
    """What stands in the only box, if it is words: three letters or more, and in no case that matters."""
    _, *boxes = _BOX.split(text)
    found = _WORDS.fullmatch(_halves(boxes[0])[0].strip()) if len(boxes) == 1 else None
    return found[1].lower() if found and len(found[1]) >= _LETTERS else None


def letters(readings: Sequence[Any]) -> str | None:
    """What the answer is written in, where that is letters alone, but for blanks, brackets and `$`."""
    bare = [_AROUND.sub("", each).lower() for each in readings if isinstance(each, str)]
    return bare[0] if bare and bare[0].isalpha() else None


def precision(readings: Sequence[Any]) -> dict[str, int]:
    """For six digits that count of each number; of 0.1 and more, for six behind the point."""
    places = max([_DIGITS, *(_DIGITS - 1 - size for reading in readings for size in _sizes(reading))])
    return {"float_rounding": places, "numeric_precision": max(_LEAST_PRECISION, places + 1)}


def _sizes(reading: Any) -> Iterator[int]:
    """The power of ten of each number other than 0."""
    from sympy import log  # noqa: PLC0415 - as math-verify

    if getattr(reading, "is_number", False):
        value = abs(reading.evalf(_DIGITS))
        if value.is_finite and not value.is_zero:
            yield floor(log(value, 10).evalf(_DIGITS))
    else:
        for part in reading.flat() if hasattr(reading, "flat") else getattr(reading, "args", ()):
            yield from _sizes(part)


def with_imaginary(readings: Sequence[Any]) -> list[Any]:
    """Where `i` is the only letter it is compared as the imaginary unit, too."""
    from sympy import Expr, I  # noqa: PLC0415 - as math-verify

    numbers = [
        each.xreplace(dict.fromkeys(each.free_symbols, I))
        for each in readings
        if isinstance(each, Expr) and [letter.name for letter in each.free_symbols] == ["i"]
    ]
    return [*readings, *numbers]


def with_percent_alike(known: Sequence[Any], given: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Where one of them alone has a percent sign it is compared without, too."""
    from math_verify.grader import get_pct_val  # noqa: PLC0415 - as math-verify

    bare = [[each for each in map(get_pct_val, readings) if each is not None] for readings in (known, given)]
    if bool(bare[0]) == bool(bare[1]):
        return [*known], [*given]
    return [*known, *bare[0]], [*given, *bare[1]]
