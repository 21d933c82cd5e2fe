"""How much an engine behind HTTP takes on, and how patient it is."""

from dataclasses import dataclass

from rollmux.checks import MAX_COUNT, MAX_SECONDS, Checks


@dataclass(frozen=True, slots=True)
class Settings:
    """`max_length` bounds a prompt with its response and is the server's own limit (`--max-model-len`; of SGLang's
    `--context-length`, 6 tokens can't be used).

    A stream that says nothing for `stall_s` is cut, but while others speak only after `queue_s`: it may wait in the
    server's queue, or have been put back there for lack of room. A response that was cut is continued, `cuts` times at
    most, each time after a wait that begins with `retry_s` and doubles.
    """

    max_length: int
    max_open: int = 256  # streams at a time; further requests wait here
    inbox: int = 4096  # the most pieces that were heard and not yet taken by `step`
    wait_s: float = 0.05  # the longest that a step waits for news
    stall_s: float = 120.0
    queue_s: float = 3600.0
    cuts: int = 5
    retry_s: float = 0.2
    ready_s: float = 600.0  # how long to wait for a server that loads its model
    vocabulary: int | None = None  # tokens that the model has; None: as its folder says, if it is readable here
    drain_s: float = 1.0  # so long a silence after a pause is taken for the end of a stream

    def __post_init__(self) -> None:
        checks = Checks("settings")
        for name in ("max_length", "max_open", "inbox"):
            checks.whole(name, getattr(self, name), 1, MAX_COUNT, "give at least 1")
        if self.vocabulary is not None:
            checks.whole("vocabulary", self.vocabulary, 1, MAX_COUNT, "give the number of tokens there are")
        checks.whole("cuts", self.cuts, 0, 1000, "give how often a response may be continued")
        for name in ("wait_s", "stall_s", "queue_s", "retry_s", "ready_s", "drain_s"):
            checks.number(name, getattr(self, name), 0, MAX_SECONDS, "give seconds")
        checks.require()
