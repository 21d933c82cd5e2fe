"""What all benchmarks share: arguments, timing in turns, the result file, tables.

Every result names all that is needed to repeat it, and how busy other processes kept the machine meanwhile.
"""

import argparse
import gc
import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from rollmux.mux.compiled import IS_COMPILED

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
COMPUTING = ("torch", "transformers", "vllm", "sglang")
Row = Mapping[str, object]


def arguments(name: str, description: str) -> argparse.ArgumentParser:
    """The options that every benchmark takes; each adds its own."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--out", type=Path, help="where results go, in place of benchmarks/results")
    parser.add_argument("--seed", type=int, default=0, help="seed of all randomness")
    parser.add_argument(
        "--quick", action="store_true", help="a small run that only shows that it works, kept by --out alone"
    )
    return parser


def record(name: str, args: argparse.Namespace, measure: Callable[[], Row]) -> dict[str, object]:
    """Run `measure` and keep its numbers, with all that surrounds them; a quick run's only where `--out` says."""
    source = git_state()  # read first: it describes the code that is loaded
    start_s, others_start_s = time.perf_counter(), others_cpu_s()
    measured = dict(measure())
    wall_s, others_s = time.perf_counter() - start_s, others_cpu_s() - others_start_s
    result: dict[str, object] = {
        "benchmark": name,
        "machine": machine(),
        "packages": packages(),
        "plays": "compiled" if IS_COMPILED else "in Python",
        "git": source,
        "seed": args.seed,
        "arguments": {key: value for key, value in vars(args).items() if key not in ("out", "seed")},
        "wall_s": wall_s,
        "other_cpu_cores": None if math.isnan(others_s) else max(0.0, others_s) / wall_s,
        "measured": measured,
    }
    text = json.dumps(result, indent=2, allow_nan=False) + "\n"
    if out := args.out or (None if args.quick else RESULTS / f"{name}.json"):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    return result


def machine() -> dict[str, object]:
    """The hardware and the interpreter, as far as the system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*: (.+)$", cpuinfo.read_text(), re.M) if cpuinfo.exists() else None
    return {
        "cpu": model[1] if model else platform.processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "gpus": gpus(),
    }


def gpus() -> list[str]:
    """By name, if the benchmark could have used any."""
    torch = sys.modules.get("torch")
    return [torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())] if torch else []


def packages() -> dict[str, str]:
    """Versions of RollMux, of the packages that its core needs, and of those that compute, where they are in use."""
    core = [line for line in metadata.requires("rollmux") or () if "extra ==" not in line]
    names = ["rollmux", *(re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in core)]
    return {name: metadata.version(name) for name in [*names, *(each for each in COMPUTING if each in sys.modules)]}


def git_state() -> dict[str, object] | None:
    """The commit, and whether anything but results differs from it; None where git knows no commit."""
    git = ("git", "-C", str(ROOT))
    try:
        commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True, stderr=subprocess.DEVNULL)
        changes = subprocess.check_output([*git, "status", "--porcelain", ":/", ":!/benchmarks/results"])
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return {"commit": commit.strip(), "dirty": bool(changes)}


def others_cpu_s() -> float:
    """CPU seconds of all but us and the children we waited for, since the machine's start; nan: unknown."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return math.nan
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, stat.read_text().split()[1:9])
    busy_s = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return busy_s - sum(os.times()[:4])


@dataclass(frozen=True, slots=True)
class Alternation:
    """Seconds per call of two callables that ran in turn."""

    a_s: tuple[float, ...]
    b_s: tuple[float, ...]

    def summary(self) -> dict[str, object]:
        """How many times as long B took as the A just before it."""
        ratios = [b / a for a, b in zip(self.a_s, self.b_s, strict=True)]
        return {
            "a_median_s": median(self.a_s),
            "b_median_s": median(self.b_s),
            "ratio_min": min(ratios),
            "ratio_median": median(ratios),
            "ratio_max": max(ratios),
            "gc": "collected before each call, off during it",
        }


def alternate(a: Callable[[], object], b: Callable[[], object], rounds: int) -> Alternation:
    """Time A B A B …, so that both meet the same weather; one call of each comes first and does not count."""
    a()
    b()
    a_s, b_s = zip(*((seconds(a), seconds(b)) for _ in range(rounds)), strict=True)
    return Alternation(a_s, b_s)


def seconds(call: Callable[[], object]) -> float:
    """Seconds that one call takes, with the garbage collected before it and the collector off during it."""
    gc.collect()
    gc.disable()
    try:
        start_s = time.perf_counter()
        call()
        return time.perf_counter() - start_s
    finally:
        gc.enable()


def percentile(values: Sequence[float], q: float) -> float:
    """The value below which `q` percent lie, interpolated between the two nearest."""
    if not values or not 0 <= q <= 100:
        raise ValueError(f"percentile {q} of {len(values)} values: needs a value and 0 <= q <= 100")
    ordered = sorted(values)
    place = (len(ordered) - 1) * q / 100
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return min(low + (high - low) * (place - math.floor(place)), high)


def table(rows: Sequence[Row]) -> None:
    """Print rows under the keys of the first one."""
    drawn = Table(*rows[0])
    for row in rows:
        drawn.add_row(*(f"{v:,.6g}" if isinstance(v, float) else str(v) for v in row.values()))
    Console(width=None if sys.stdout.isatty() else 120).print(drawn)
