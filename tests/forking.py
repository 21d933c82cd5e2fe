"""Scripts at work in processes of their own, forked from one that has imported torch and transformers already.

Each import takes six seconds of a core.
"""

import os
import runpy
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import rollmux

ROLLMUX = Path(rollmux.__file__).parent / "__main__.py"
LIMIT_S = 600.0  # a core may be shared with many


def forks() -> ForkServerContext:
    """Where processes begin so."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "transformers.models.llama.modeling_llama"])
    return context


@dataclass(frozen=True, slots=True)
class Play:
    """A script at work; what it prints is in `said`."""

    process: ForkServerProcess
    said: Path

    def printed(self) -> list[str]:
        """What it has printed, once it has ended well; not what the client says of waits, which depends on how long."""
        try:
            self.process.join(LIMIT_S)
            lines = self.said.read_text().splitlines()
            assert self.process.exitcode == 0, lines
        finally:
            self.process.kill()
        return [line for line in lines if not line.startswith("rollmux: ")]


def begun(script: Path, *arguments: str, said: Path, env: Mapping[str, str]) -> Play:
    process = forks().Process(target=_play, args=(str(script), arguments, str(said), dict(env)))
    process.start()
    return Play(process, said)


def _play(script: str, arguments: tuple[str, ...], said: str, env: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)
    file = os.open(said, os.O_WRONLY | os.O_CREAT, 0o600)
    for standard in (1, 2):
        os.dup2(file, standard)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))  # as Python does
    runpy.run_path(script, run_name="__main__")
