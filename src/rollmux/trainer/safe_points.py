"""Work of other threads that is done while nothing else is under way: between two sweeps of a round, or outside of
rounds.

Invariant: the thread that asks goes on once its work is done, or has failed, and never waits for a point that does not
come.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Lock

Work = Callable[[], None]


class SafePoints:
    """The points of one rollout."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._wanted: list[tuple[Work, Future[None]]] = []
        self._under_way = False

    def do(self, work: Work) -> None:
        """Returns once the round's own thread has done the work at its next point. Outside of a round, does it now."""
        with self._lock:
            if not self._under_way:
                work()
                return
            done = Future[None]()
            self._wanted.append((work, done))
        done.result()

    @contextmanager
    def round(self) -> Iterator[None]:
        with self._lock:
            self._under_way = True
        try:
            yield
        finally:
            with self._lock:
                self._under_way = False
                self._catch_up()

    def pass_by(self) -> None:
        """A safe point of the round's thread: does the work that is wanted."""
        if self._wanted:
            with self._lock:
                self._catch_up()

    def _catch_up(self) -> None:
        wanted, self._wanted = self._wanted, []
        try:
            for work, done in wanted:
                try:
                    work()
                except Exception as error:  # noqa: BLE001 - the thread that asked raises it
                    done.set_exception(error)
                else:
                    done.set_result(None)
        finally:
            for _, done in wanted:
                done.cancel()  # not done, as Ctrl-C came first
