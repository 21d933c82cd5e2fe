"""What a job that learns gains by tail batching, and what it loses: the reference trainer, synchronous and by modes.

Modes take turns, seed by seed, each from the same warmed-up weights. Runs are saved as they end: the same command goes
on where it was stopped, and with `--minutes 4` no run begins after four minutes.
"""

from argparse import Namespace
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from time import monotonic

import torch

from benchmarks.figures.learning_runs import MODES, Case, Run, keep, kept, missing, train
from benchmarks.figures.learning_tables import parts_of
from benchmarks.figures.parts import shown
from benchmarks.harness import ROOT, arguments, record
from rollmux.trainer.job_file import read_job_file
from rollmux.trainer.settings import JobFile, Model, Sampling, Task, Warmup

JOB = ROOT / "examples" / "train" / "long_tail.yaml"


def cases(args: Namespace, job: JobFile) -> list[Case]:
    """Seed by seed; who begins changes, for machines get slower and faster."""
    found = []
    for place in range(args.seeds):
        modes = list(MODES)
        turn = place % len(modes)
        seeded = replace(job, seed=args.seed + place)
        found += [Case(seeded, mode, args.asked_every, args.asked) for mode in modes[turn:] + modes[:turn]]
    return found


def job_of(args: Namespace) -> JobFile:
    job = read_job_file(args.job)
    if args.quick:
        args.seeds, args.asked, args.asked_every = 2, 8, 5
        job = replace(
            job,
            steps=5,
            model=Model(hidden=16, layers=1, heads=2),
            task=Task(prompts=40, largest=5, median=2, spread=0.5, longest=5),
            warmup=Warmup(steps=5, batch=8, rate=1e-2),
            batching=replace(job.batching, prompts=4, responses=4),
            sampling=Sampling(max_tokens=30),
        )
    return replace(job, steps=args.steps or job.steps)


def made(args: Namespace, wanted: list[Case]) -> dict[str, Run]:
    """Runs by key: those that are kept, and those that can be begun in time."""
    known = {} if args.quick else kept(args.runs)
    until_s = monotonic() + 60 * args.minutes
    for case, weights in missing(wanted, known):
        known[case.key] = run = train(case, weights)
        if not args.quick:
            keep(args.runs, case, run)
            print(f"seed {run.seed}, {run.mode}: {run.worth[-1].reward:.3f} after {run.wall_s:.0f} s", flush=True)
        if monotonic() > until_s:
            break
    return known


def measured(wanted: list[Case], known: dict[str, Run]) -> dict[str, object]:
    runs = {mode: [known[case.key] for case in wanted if case.mode == mode] for mode in MODES}
    every = [run for each in runs.values() for run in each]
    return {
        **shown(parts_of(runs)),
        "runs": [
            {
                "mode": run.mode,
                "seed": run.seed,
                "worth": [[each.steps, each.reward] for each in run.worth],
                "sweeps": sum(step.sweeps for step in run.steps),
                "rollout_s": sum(step.rollout_s for step in run.steps),
                "train_s": sum(step.train_s for step in run.steps),
            }
            for run in every
        ],
        "runs_wall_s": sum(run.wall_s for run in every),
        "runs_other_cpu_cores": fmean(run.other_cpu_cores for run in every),
        "runs_git": sorted({str((run.git or {}).get("commit")) for run in every}),
    }


def main() -> None:
    parser = arguments("learning", __doc__)
    parser.add_argument("--job", type=Path, default=JOB, help="the job; the modes change its batching")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=0, help="updates of each run; 0: as the job says")
    parser.add_argument("--asked", type=int, default=150, help="prompts by which the policy is judged")
    parser.add_argument("--asked-every", type=int, default=5, help="steps from one judgement to the next")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "learning.jsonl", help="where runs are kept")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no run later than that")
    args = parser.parse_args()
    torch.set_num_threads(1)
    job = job_of(args)
    wanted = cases(args, job)
    known = made(args, wanted)
    lacking = sum(case.key not in known for case in wanted)
    if lacking:
        print(f"{lacking} of {len(wanted)} runs are still to be made: give the same command again")
        return
    args.job = args.job.name
    del args.runs, args.minutes
    record("learning", args, lambda: {"job": asdict(job), **measured(wanted, known)})


if __name__ == "__main__":
    main()
