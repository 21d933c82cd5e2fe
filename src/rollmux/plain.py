"""Words of strangers, such as what a job has printed, for whoever reads them in a terminal.

Invariant: what comes of them moves no cursor, and commands no terminal. Loaded by every keeper: it imports nothing.
"""


def plain(line: str) -> str:
    """All of it on one line, with a blank for each character that does more than be seen."""
    if line.isprintable():  # as most are: character by character a megabyte takes a while
        return line
    return "".join(char if char.isprintable() or char == "\t" else " " for char in line)
