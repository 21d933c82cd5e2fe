"""A job that only waits, for planned times, and needs no core: `python timed_job.py PLAN.json`, under a controller.

The plan says for each iteration how long rollout and training take, and how long a sync and moving state in and off
take. Phases can pause. The controller is not told any measurements, so its forecasts stay the same.
"""

import json
import sys
import time
from pathlib import Path
from threading import Condition

from rollmux.client import connect


class Work:
    """Time passes, but not while it is paused."""

    def __init__(self) -> None:
        self._paused = False
        self._changed = Condition()

    def pause(self) -> None:
        self._set(paused=True)

    def resume(self) -> None:
        self._set(paused=False)

    def take(self, seconds: float) -> None:
        with self._changed:
            while seconds > 0:
                if self._paused:
                    self._changed.wait()
                    continue
                began = time.monotonic()
                self._changed.wait(seconds)
                seconds -= time.monotonic() - began

    def _set(self, *, paused: bool) -> None:
        with self._changed:
            self._paused = paused
            self._changed.notify_all()


class State:
    """Takes time to be moved."""

    def __init__(self, load_s: float, offload_s: float) -> None:
        self.load_s, self.offload_s = load_s, offload_s

    def load(self) -> None:
        time.sleep(self.load_s)

    def offload(self) -> None:
        time.sleep(self.offload_s)


def main(plan: Path) -> None:
    told = json.loads(plan.read_text(encoding="utf-8"))
    work = Work()
    actor, learner = (State(told["load_s"], told["offload_s"]) for _ in range(2))
    with connect(profile=0) as mux:
        mux.runtime_hook("pause")(work.pause)
        mux.runtime_hook("resume")(work.resume)
        for step in mux.steps(len(told["rollout_s"])):
            with mux.phase("rollout", state=actor):
                work.take(told["rollout_s"][step])
            with mux.phase("train", state=learner):
                work.take(told["train_s"][step])
            with mux.phase("sync"):
                time.sleep(told["sync_s"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
