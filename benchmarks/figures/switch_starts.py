"""Cold starts against warm ones.

*Cold*: a new process imports torch and transformers, reads weights (and the optimizer's moments) from files, and takes
a step. The files come from the disk: before each start the kernel is asked to drop them from its cache, as it has not
kept them for a job that comes back after others. A second figure is for files in the cache. The libraries' own files
are always in the cache. *Warm*: a living process whose state is on the host loads it, and takes the same step. A cold
start has no gradients. So in the state "train" gradients are there and zero, as after a phase that ends with
`zero_grad`, and in "train, gradients kept" they are those that a step has left.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from torch import nn

from benchmarks.figures.switch_jobs import Shape, built, step
from benchmarks.harness import ROOT, Row
from rollmux.runtime.residency import Budget, Memory, Resident

WARM = 3  # warm starts after each cold one

COLD = """
import sys
sys.path.insert(0, sys.argv[4])
import torch
from pathlib import Path
from transformers.utils.logging import disable_progress_bar
from benchmarks.figures.switch_jobs import step, taken_up
disable_progress_bar()
torch.set_num_threads(int(sys.argv[3]))
model, optimizer = taken_up(Path(sys.argv[1]), sys.argv[2] == "train", torch.device(sys.argv[5]))
print("ready", flush=True)
step(model, optimizer).item()
print("stepped", flush=True)
"""
Times = tuple[float, float]  # until the state is there, and until the first step is done


def cold(folder: Path, kind: str, device: torch.device) -> Times:
    """Of a new process."""
    told = (folder, kind, torch.get_num_threads(), ROOT, device.type)
    command = [sys.executable, "-c", COLD, *map(str, told)]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        heard = [(line.strip(), time.perf_counter() - began) for line in process.stdout]
    if [word for word, _ in heard] != ["ready", "stepped"] or process.returncode:
        raise RuntimeError(f"the cold start of {kind} ended with {process.returncode}; it is told above why")
    return heard[0][1], heard[1][1]


def forgotten(files: Sequence[Path]) -> None:
    """The kernel keeps nothing of these files in memory."""
    for path in files:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def warm(resident: Resident, model: nn.Module, optimizer: torch.optim.Optimizer | None, keep: bool) -> Times:
    """Of a process that lives, and whose state is on the host."""
    if optimizer is not None and not keep:
        optimizer.zero_grad(set_to_none=False)
    resident.offload()
    began = time.perf_counter()
    resident.load()
    ready_s = time.perf_counter() - began
    step(model, optimizer).item()
    return ready_s, time.perf_counter() - began


def starts(
    budget: Budget, shape: Shape, files: Sequence[Path], memories: Sequence[tuple[str, Memory]], count: int
) -> list[Row]:
    """A row for each state, each way to let go of memory, and where a cold start has its files from."""
    devices = dict.fromkeys(memory.device for _, memory in memories)
    colds = {(each, kind): colds_of(files, kind, each, count) for each in devices for kind in ("rollout", "train")}
    rows: list[Row] = []
    for state in ("rollout", "train", "train, gradients kept"):
        kind = state.split(",")[0]
        for told, memory in memories:
            taken = warms(budget, shape, state, memory, WARM * count)
            rows += compared(state, told, colds[memory.device, kind], taken)
    return rows


def colds_of(files: Sequence[Path], kind: str, device: torch.device, count: int) -> dict[str, list[Times]]:
    """From the disk and from the kernel's cache, in turn."""
    taken: dict[str, list[Times]] = {"disk": [], "cache": []}
    for _ in range(count):
        forgotten(files)
        taken["disk"].append(cold(files[0].parent, kind, device))
        taken["cache"].append(cold(files[0].parent, kind, device))
    return taken


def warms(budget: Budget, shape: Shape, state: str, memory: Memory, count: int) -> list[Times]:
    model, optimizer = built(shape, state != "rollout", memory.device)
    held = Resident((model, optimizer), name="starts", budget=budget, memory=memory, read_only=state == "rollout")
    keep = state.endswith("kept")
    warm(held, model, optimizer, keep)
    taken = [warm(held, model, optimizer, keep) for _ in range(count)]
    held.close()
    return taken


def compared(state: str, told: str, colds: dict[str, list[Times]], taken: list[Times]) -> list[Row]:
    warm_s, warm_step_s = (median(each) for each in zip(*taken, strict=True))
    rows: list[Row] = []
    for source, times in colds.items():
        cold_s, cold_step_s = (median(each) for each in zip(*times, strict=True))
        row = {"state": state, "working memory": told, "threads": torch.get_num_threads(), "cold from": source}
        row |= {"cold s": cold_s, "warm s": warm_s}
        row |= {"cold/warm": cold_s / warm_s, "cold with a step s": cold_step_s, "warm with a step s": warm_step_s}
        rows.append(row | {"cold/warm with a step": cold_step_s / warm_step_s})
    return rows
