"""A real vLLM in a process of its own, and the engine inside it, which is driven from here as if it were here.

ROLLMUX_TEST_VLLM is the Python of an environment that has it (docs/design/engine_http.md). On a processor it takes
sleeps and wakes, and holds its memory all the while.
"""

import os
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rollmux.runtime.engine import Begun, Event, Gauges, GenerationRequest, Unfinished

PYTHON = os.environ.get("ROLLMUX_TEST_VLLM", "")
ROOT = Path(__file__).parents[3]
ENVIRONMENT = {
    "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCHDYNAMO_DISABLE": "1",
}  # fmt: skip


class Owner:
    """Whoever has the `LLM` (`real_child.Owner`)."""

    def __init__(self, line: Connection) -> None:
        self._line = line

    def ask(self, name: str, *told: Any, of_engine: bool = False, **named: Any) -> Any:
        self._line.send((of_engine, name, told, named))
        found, error = self._line.recv()
        if error is not None:
            raise error
        return found

    def engine(self, **said: Any) -> "Inside":
        """A new one, in place of the one before."""
        self.ask("begin", **said)
        return Inside(self)


class Inside:
    """The engine there. See `rollmux.runtime.engine.seam.Engine`."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner

    def _ask(self, name: str, *told: Any, **named: Any) -> Any:
        return self.owner.ask(name, *told, of_engine=True, **named)

    @property
    def version(self) -> int:
        return int(self._ask("version"))

    @property
    def is_suspended(self) -> bool:
        return bool(self._ask("is_suspended"))

    @property
    def unfinished(self) -> int:
        return int(self._ask("unfinished"))

    def submit(self, request: GenerationRequest) -> None:
        self._ask("submit", request)

    def cancel(self, ids: Iterable[str]) -> None:
        self._ask("cancel", list(ids))

    def export(self, ids: Iterable[str] | None = None) -> tuple[Unfinished, ...]:
        taken: tuple[Unfinished, ...] = self._ask("export", None if ids is None else list(ids))
        return taken

    def adopt(self, unfinished: Iterable[Unfinished], mixed: bool = False) -> None:
        self._ask("adopt", tuple(unfinished), mixed)

    def update(self, version: int, weights: Mapping[str, Any] | None = None, begun: Begun = Begun.REFUSE) -> None:
        self._ask("update", version, weights, begun)

    def suspend(self, keep: bool = False) -> None:
        self._ask("suspend", keep)

    def resume(self) -> None:
        self._ask("resume")

    def step(self) -> list[Event]:
        events: list[Event] = self._ask("step")
        return events

    def probe(self, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
        answer: tuple[int, ...] = self._ask("probe", prompt, count)
        return answer

    def gauges(self) -> Gauges:
        gauges: Gauges = self._ask("gauges")
        return gauges

    def close(self) -> list[Event]:
        events: list[Event] = self._ask("close")
        return events


@contextmanager
def real_llm(
    folder: str,
    config: Mapping[str, Any],
    packed: bool = True,
    sleeps: bool = True,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Owner]:
    """Of the weights in a folder. Its log lies beside them."""
    here, there = socket.socketpair()
    command = [PYTHON, "-m", "tests.runtime.engine_inside.real_child", str(there.fileno())]
    told = os.environ | ENVIRONMENT | dict(environment or {})
    with here, there, (Path(folder).parent / "llm.log").open("ab") as log:
        child = subprocess.Popen(
            command, cwd=ROOT, env=told, stdout=log, stderr=log, pass_fds=[there.fileno()], start_new_session=True
        )
        there.close()
        with Connection(here.detach()) as line:
            try:
                owner = Owner(line)
                owner.ask("make", packed, sleeps, model=folder, dtype="float32", enforce_eager=True, **config)
                yield owner
                line.send(None)
                child.wait(60)
            finally:
                child.kill()
                child.wait()
