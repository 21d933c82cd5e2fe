"""How many examples the long properties try: a sixth of them in every run, all of them in `make test-slow`."""

from hypothesis import settings


def examples(count: int) -> int:
    """So many where there is time (`--hypothesis-profile=thorough`)."""
    return count if settings.get_current_profile_name() == "thorough" else max(10, count // 6)
