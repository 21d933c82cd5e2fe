"""Messages for which no thread of the job waits: how far a rollout is, and how long phases take.

The former may get lost, as another one follows. The latter comes once, and is sent until it is heard.
"""

import logging
from threading import Condition, Thread

from rollmux.client.errors import Unreachable
from rollmux.client.link import Link
from rollmux.errors import RollmuxError
from rollmux.mux.job import PhaseKind
from rollmux.protocol.messages import Done, Heard, Profile, Report, Said

log = logging.getLogger("rollmux")

# The time between two messages of a rollout's progress. The controller learns from them when the tail begins.
INTERVAL_S = 0.25
PATIENCE_S = 2.0


class Aside(Thread):
    """A thread that sends the latest progress and the latest profile."""

    def __init__(self, link: Link) -> None:
        super().__init__(name="rollmux-aside", daemon=True)
        self.link = link
        self._news = Condition()
        self._progress: Report | None = None
        self._profile: Profile | None = None
        self._closed = False

    def progress(self, done: int, total: int) -> None:
        """Tells that `done` of the `total` responses of the rollout under way are done."""
        stint = self.link.stints.get(PhaseKind.ROLLOUT)
        lease = stint.lease if stint is not None else None
        try:
            done, total = int(done), int(total)  # they may be numbers of numpy or torch
        except (TypeError, ValueError, OverflowError) as error:
            log.debug("%r of %r is no progress: %s", done, total, error)
            return
        if lease is not None and 0 <= done <= total and total > 0:
            with self._news:
                self._progress = Report(
                    Said.PROGRESSED, lease.epoch, self.link.rank, done, total, instance=self.link.instance
                )
                self._news.notify()

    def profile(self, profile: Profile) -> None:
        with self._news:
            self._profile = profile
            self._news.notify()

    def close(self) -> None:
        """Ends the thread."""
        with self._news:
            self._closed = True
            self._news.notify()

    def run(self) -> None:
        closing = self.link.wire.closing
        while not self._closed:
            with self._news:
                self._news.wait_for(lambda: self._progress or self._profile or self._closed)
                progress, self._progress = self._progress, None
                profile, self._profile = self._profile, None
            if progress is not None:
                self._send("report", progress, Heard)
            if profile is not None and not self._send("profile", profile, Done):
                with self._news:
                    self._profile = self._profile or profile
            closing.wait(INTERVAL_S)

    def _send(self, verb: str, message: Report | Profile, answer: type[Heard | Done]) -> bool:
        """Whether there was an answer, even if it was a refusal."""
        try:
            self.link.send(verb, message, answer, patience_s=PATIENCE_S)
        except (RollmuxError, TypeError, ValueError) as error:  # the script's state says its size: any value may come
            log.debug("%s was not heard: %s", message, error)
            return not isinstance(error, Unreachable)
        return True
