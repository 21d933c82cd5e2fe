"""What a job gains by processes beside its own: rollout workers and replicas of the learner, against one process.

The same job runs in forms that take turns, step by step: all in one process; its update by two replicas; its rollout by
two workers in processes of their own; both; and with training that begins while the last responses are drawn, on a core
that idles, or on that of a worker that is freed for it. Each process has one thread, so no form uses more than two
cores. All forms should draw the same as one process, up to rounding: how likely the tokens are that they drew in the
last step is shown beside their seconds. No answer of so new a model is right, so rewards would show nothing. A rollout
gains less than an update: its tail has few responses, and a step of few is no faster on two cores.
"""

from argparse import Namespace
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import fmean, median
from time import perf_counter

import torch

from benchmarks.figures.goals import Goal, show
from benchmarks.harness import arguments, record, table
from rollmux.trainer.parts import Parts
from rollmux.trainer.settings import Batching, JobFile, Model, Optimiser, Rollout, Sampling, Task, Update

GOAL = 1.5  # of two cores
ONE, REPLICAS, WORKERS, BOTH = "one process", "two replicas", "two workers beside", "both"
EARLY, FREED = "two replicas, early", "both, early"
EARLY_PART = 1.0  # as many prompts as there is time for
QUICKLY = (ONE, REPLICAS, EARLY)
JOB = JobFile(
    model=Model(hidden=512, layers=8, heads=8),  # so large that a decode step is mostly arithmetic
    task=Task(prompts=200, largest=9, median=6, spread=0.8, longest=24),
    batching=Batching(mode="sync", prompts=16, responses=8),
    sampling=Sampling(max_tokens=48),
    optimiser=Optimiser(rate=1e-5),
    rollout=Rollout(running=128, max_length=160),
)
QUICK = replace(
    JOB,
    model=Model(hidden=16, layers=1, heads=2),
    batching=Batching(mode="sync", prompts=8, responses=2),
    sampling=Sampling(max_tokens=10),
)


def forms(job: JobFile) -> Mapping[str, JobFile]:
    beside = replace(job.rollout, workers=2, place="beside")
    return {
        ONE: job,
        REPLICAS: replace(job, update=Update(replicas=2)),
        WORKERS: replace(job, rollout=beside),
        BOTH: replace(job, update=Update(replicas=2), rollout=beside),
        EARLY: replace(job, update=Update(replicas=2, early=EARLY_PART)),
        FREED: replace(job, update=Update(replicas=2, early=EARLY_PART), rollout=beside),
    }


def step(parts: Parts) -> tuple[float, float, float]:
    """Seconds of rollout and of update, and the mean log-probability of a drawn token."""
    began = perf_counter()
    rolled = parts.rollout.round(lambda over, launched: None)
    between = perf_counter()
    parts.learner.update(rolled.samples)
    ended = perf_counter()
    parts.rollout.update(parts.learner.version)
    drawn = [logprob for sample in rolled.samples for logprob in sample.logprobs]
    return between - began, ended - between, fmean(drawn)


class Form:
    """A job in a process of its own: the processes of two forms would be one group."""

    def __init__(self, job: JobFile) -> None:
        context = get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(job, there))
        self._process.start()
        there.close()

    def step(self) -> tuple[float, float, float]:
        self._pipe.send(None)
        took: tuple[float, float, float] = self._pipe.recv()
        return took

    def close(self) -> None:
        self._pipe.close()
        self._process.join()


def _serve(job: JobFile, pipe: Connection) -> None:
    torch.set_num_threads(1)
    with closing(Parts(job)) as parts, suppress(EOFError):
        while True:
            pipe.recv()
            pipe.send(step(parts))


def measure(args: Namespace) -> dict[str, object]:
    job = replace(QUICK if args.quick else JOB, seed=args.seed)
    if args.hidden and not args.quick:
        job = replace(job, model=replace(job.model, hidden=args.hidden, layers=args.layers))
    if args.tokens and not args.quick:
        job = replace(job, sampling=Sampling(max_tokens=args.tokens))
    with ExitStack() as stack:
        chosen = {name: form for name, form in forms(job).items() if not args.quick or name in QUICKLY}
        made = {name: stack.enter_context(closing(Form(form))) for name, form in chosen.items()}
        for form in made.values():
            form.step()  # processes begin
        turns = [{name: form.step() for name, form in made.items()} for _ in range(2 if args.quick else args.rounds)]
    rows = []
    for name in made:
        rollout_s, update_s = (median(turn[name][part] for turn in turns) for part in range(2))
        gains = [median(turn[ONE][part] / turn[name][part] for turn in turns) for part in range(2)]
        whole = median(sum(turn[ONE][:2]) / sum(turn[name][:2]) for turn in turns)
        rows.append(
            {
                "form": name,
                "rollout s": rollout_s,
                "update s": update_s,
                "log-probability": turns[-1][name][2],
                "one over this, rollout": gains[0],
                "update": gains[1],
                "step": whole,
            }
        )
    table(rows)
    found = {str(row["form"]): row for row in rows}
    goal = Goal("update by two replicas, times as fast", _number(found[REPLICAS], "update"), GOAL, False)
    return {"rows": rows, "goals": show([goal])}


def _number(row: Mapping[str, object], name: str) -> float:
    value = row[name]
    assert isinstance(value, float)
    return value


def main() -> None:
    parser = arguments("beside", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="steps of each form")
    parser.add_argument("--tokens", type=int, default=0, help="the longest response; 0: as it is")
    parser.add_argument("--hidden", type=int, default=0, help="the model's width; 0: as it is")
    parser.add_argument("--layers", type=int, default=6, help="its layers, where a width is given")
    args = parser.parse_args()
    record("beside", args, lambda: measure(args))


if __name__ == "__main__":
    main()
