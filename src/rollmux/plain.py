"""Makes text by strangers, such as what a job has printed, safe to show in a terminal.

Invariant: the text given back moves no cursor and commands no terminal. Every keeper loads this module, so it imports
nothing.
"""


def plain(line: str) -> str:
    """The whole text on one line: tabs stay, and a blank replaces every other character that is not printable."""
    if line.isprintable():  # as most lines are: to look at each character of a megabyte takes a while
        return line
    return "".join(char if char.isprintable() or char == "\t" else " " for char in line)
