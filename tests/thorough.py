"""How much the long properties try: a part of it in every run, all of it in `make test-slow`."""

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import settings

T = TypeVar("T")


def examples(count: int) -> int:
    """So many where there is time (`--hypothesis-profile=thorough`)."""
    return count if _is_thorough() else max(8, count // 16)


def some(of: Sequence[T], every: int) -> Sequence[T]:
    """All of them where there is time, otherwise the first and every so many after it."""
    return of if _is_thorough() else of[::every]


def first(of: Sequence[T], count: int) -> Sequence[T]:
    """All of them where there is time, otherwise so many."""
    return of if _is_thorough() else of[:count]


def _is_thorough() -> bool:
    return settings.get_current_profile_name() == "thorough"
