"""The results of each step: a line in a file, a line on the console, and a call of every tracker.

A step's results and its times are in two files: a run that is repeated or continued writes the first byte for byte
again. Invariant: after `continue_from(step)` and the same steps again each file has one line for each step.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from rollmux.packer import Account
from rollmux.trainer.errors import CheckpointRefused
from rollmux.trainer.rollout import Rolled
from rollmux.trainer.update import Stats

Record = Mapping[str, Any]
Tracker = Callable[[int, Record], None]  # the step, and its results with `seconds`; it may be told a step again

METRICS, TIMES = "metrics.jsonl", "times.jsonl"


def record(step: int, rolled: Rolled, update: Stats, accounts: Mapping[int, Account], queued: int) -> dict[str, Any]:
    """The results of one step."""
    batch, samples = rolled.batch, rolled.samples
    lengths = [sample.drawn for sample in samples]
    return {
        "step": step,
        "kind": batch.kind.value,
        "reward": fmean(sample.reward for sample in samples),
        "prompts": len(batch.prompts),
        "responses": len(samples),
        "length_mean": fmean(lengths),
        "length_max": max(lengths),
        "turns_mean": fmean(sample.turns for sample in samples),
        "cut": rolled.cut,
        "generated_tokens": rolled.generated_tokens,
        "wasted_tokens": rolled.generated_tokens - sum(lengths),
        "aborted": batch.aborted,
        "failed": batch.failed,
        "failures": rolled.failures,
        "deferred": len(batch.deferred),
        "filtered": len(batch.filtered),
        "queued": queued,
        "epochs": {str(epoch): {**asdict(each), "waiting": each.waiting} for epoch, each in _open(accounts).items()},
        "update": asdict(update),
    }


def _open(accounts: Mapping[int, Account]) -> Mapping[int, Account]:
    """The newest two epochs, and older ones with prompts that wait: the others were told, and change no more."""
    newest = max(accounts, default=0)
    return {epoch: each for epoch, each in accounts.items() if each.waiting or epoch >= newest - 1}


class Metrics:
    """The metric files of one run, and its trackers."""

    def __init__(self, folder: Path, trackers: Sequence[Tracker] = ()) -> None:
        self._files = {name: folder / name for name in (METRICS, TIMES)}
        self._trackers = trackers

    @property
    def is_empty(self) -> bool:
        """Whether no step is in the file."""
        path = self._files[METRICS]
        return not path.exists() or not path.stat().st_size

    def continue_from(self, step: int) -> None:
        """Removes the lines of this step and later ones, which did not count, and an unfinished line."""
        for path in self._files.values():
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
            kept = [line for line in lines if line.endswith(b"\n") and _step_of(line, path) < step]
            write_anew(path, b"".join(kept))

    def tell(self, found: Record, seconds: Record) -> None:
        step = found["step"]
        self._append(METRICS, found)
        self._append(TIMES, {"step": step, **seconds})
        for tracker in self._trackers:
            tracker(step, {**found, "seconds": dict(seconds)})

    def _append(self, name: str, line: Record) -> None:
        path = self._files[name]
        with _written(path), path.open("ab") as file:
            file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def write_anew(path: Path, content: bytes) -> None:
    """Replaces a file of the run as a whole: without room for the new one it stays as it was."""
    unfinished = path.with_suffix(".unfinished")
    with _written(path):
        unfinished.write_bytes(content)
        unfinished.replace(path)


@contextmanager
def _written(path: Path) -> Iterator[None]:
    """Says which file could not be written, and how the run goes on."""
    try:
        yield
    except OSError as error:
        raise CheckpointRefused(f"{path} can't be written ({error}): make room, and continue with --resume") from error


def _step_of(line: bytes, path: Path) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointRefused(f"{path} holds a line that is not of a step ({line[:40]!r}): take it out") from error


def on_console(console: Console, steps: int) -> Tracker:
    """A tracker that shows a line for each step."""

    def show(step: int, found: Record) -> None:
        seconds = found["seconds"]
        bar = "━" * round(20 * min(1.0, max(0.0, found["reward"])))
        turns = f"turns {found['turns_mean']:.1f} " if found["turns_mean"] > 1 else ""
        failed = f"failed {found['failed']} " if found["failed"] else ""
        console.print(
            f"step {step + 1:>4}/{steps} [dim]{found['kind']:>5}[/dim] reward [bold]{found['reward']:.3f}[/bold] "
            f"[green]{bar:<20}[/green] length {found['length_mean']:>4.0f}, max {found['length_max']:>3} "
            f"{turns}waiting {found['queued']:>2} {failed}"
            f"[dim]rollout {seconds['rollout']:.1f} s, train {seconds['train']:.1f} s[/dim]",
            highlight=False,
            markup=True,
        )

    return show
