"""The results of several runs of `rollmux demo`: two real jobs alone on pools of their own, then woven on one.

Each run is the command itself, in a folder of its own. The gain is the work for a node-hour, woven over alone, by the
median step of each job; `mean` is by all steps, with whatever else the machine did meanwhile. Runs differ because other
processes, and other guests of the host, use the cores' shared cache, too: all are shown, and the median counts.
"""

import json
import subprocess
import sys
import tempfile
from argparse import Namespace
from statistics import median
from typing import Any

from benchmarks.figures.goals import Goal, show
from benchmarks.harness import ROOT, arguments, record, table

GOAL_GAIN = 1.8  # of the paper's 1.82 for such a pair (RollMux, arXiv 2512.11306)
PROGRAM = "from rollmux.cli import app; app()"


def run(options: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="rollmux-demo-") as folder:
        command = [sys.executable, "-c", PROGRAM, "demo", "--json", "--out", folder, *options]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def slowdown(job: dict[str, Any]) -> float:
    return float(job["woven_s"] / job["alone_s"])


def row(number: int, found: dict[str, Any]) -> dict[str, object]:
    jobs = found["jobs"]
    return {
        "run": number,
        "gain": found["gain"],
        "gain, mean": found["mean_gain"],
        **{f"{job['job']}: slowdown": slowdown(job) for job in jobs},
        "SLO": jobs[0]["slo"],
        "same rewards": all(job["same_rewards"] for job in jobs),
        "idle alone": found["idle_alone"],
        "idle woven": found["idle_woven"],
        "switch s": found["switch_s"],
    }


def measure(args: Namespace) -> dict[str, object]:
    options = ["--engine", "replay", "--steps", "3"] if args.quick else []
    runs = [run(options) for _ in range(1 if args.quick else args.runs)]
    rows = [row(number, found) for number, found in enumerate(runs, 1)]
    table(rows)
    over = [max(slowdown(job) / job["slo"] for job in found["jobs"]) for found in runs]
    same = [job["same_rewards"] for found in runs for job in found["jobs"]]
    gain = median(found["gain"] for found in runs)
    goals = [
        Goal("work for a node-hour, woven over alone (median run)", gain, GOAL_GAIN, False),
        Goal("slowest job over its SLO (median run)", median(over), 1.0),
        Goal("part of the jobs whose rewards are those of the run alone", sum(same) / len(same), 1.0, False),
    ]
    return {"rows": rows, "runs": runs, "goals": show(goals)}


def main() -> None:
    parser = arguments("demo", __doc__)
    parser.add_argument("--runs", type=int, default=5, help="of the whole demo, three minutes each")
    args = parser.parse_args()
    record("demo", args, lambda: measure(args))


if __name__ == "__main__":
    main()
