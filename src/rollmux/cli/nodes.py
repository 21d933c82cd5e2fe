"""How nodes are named in a column of a table."""

from itertools import takewhile


def few_words(names: tuple[str, ...]) -> str:
    """If names differ in their numbers alone, only the first is whole; of many names, only first and last are told."""
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    stem = "".join(letters[0] for letters in alike).rstrip("0123456789") if len(names) > 1 else ""
    rest = [name.removeprefix(stem) for name in names[1:]]
    if len(rest) > 4:
        rest = ["…", rest[-1]]
    return (", " if not stem else ",").join([names[0], *rest])
