"""Both tiers together: the price of the production-like trace with neither, with each, and with both.

`mux` shares nodes between jobs, `packer` shortens each job's rounds by tail batching. All is compared with solo: every
synchronous job on nodes of its own. Profiles come from the job simulator, with the setup nearest to each job.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from os import cpu_count
from statistics import fmean

from benchmarks.figures.goals import Goal, spread, told
from benchmarks.figures.packed_trace import (
    AS_IT_IS,
    COUNTED,
    SYSTEMS,
    Bill,
    PackedRun,
    Recording,
    record_profile,
    run_packed,
)
from benchmarks.figures.parts import Part, shown
from benchmarks.harness import arguments, record
from rollmux.sim.job.shipped import SETUPS
from rollmux.sim.profile import CYCLES, Profile
from rollmux.sim.sweep import interval

GOAL_BOTH = 3.5
GOAL_SLO = 1.0

Profiles = Mapping[str, Mapping[str, Profile]]  # by variant and setup
Bills = Mapping[tuple[str, str, bool, bool, bool], Sequence[Bill]]  # by key of the run, in the order of seeds

SOLO = PackedRun("solo", 0)
MUX = PackedRun("rollmux", 0)
PACKER = PackedRun("solo", 0, COUNTED)
BOTH = PackedRun("rollmux", 0, COUNTED)


def systems(*, phases: bool) -> Iterator[tuple[str, PackedRun]]:
    """What is compared: its name, and the run without its seed and profiles."""
    yield "neither", replace(SOLO, phases=phases)
    yield "mux", replace(MUX, phases=phases)
    for variant in (COUNTED,) if phases else SYSTEMS:
        yield "packer", replace(PACKER, variant=variant, phases=phases)
        for promised in (False, True):
            for stagger in (False, True) if phases else (False,):
                run = replace(BOTH, variant=variant, promised=promised, phases=phases, stagger=stagger)
                yield "both", run


def profiles_of(args: Namespace) -> Profiles:
    """Every profile, recorded once."""
    cycles = 1 if args.quick else CYCLES
    runs = [Recording(variant, setup, cycles, args.seed) for variant in SYSTEMS for setup in SETUPS]
    found: dict[str, dict[str, Profile]] = {}
    for run, profile in zip(runs, spread(record_profile, runs, args.workers), strict=True):
        found.setdefault(run.variant, {})[run.setup] = profile
    return found


def bills(args: Namespace, profiles: Profiles) -> Bills:
    """Every run: all seeds at pace, the first one phase by phase."""
    jobs, hours = (12, 22.0) if args.quick else (None, None)
    runs = [
        replace(run, seed=args.seed + i, profiles=profiles.get(run.variant), jobs=jobs, hours=hours)
        for phases, seeds in ((True, 1), (False, args.seeds))
        for _, run in systems(phases=phases)
        for i in range(seeds)
    ]
    found: dict[tuple[str, str, bool, bool, bool], list[Bill]] = {}
    for run, bill in zip(runs, spread(run_packed, runs, args.workers), strict=True):
        found.setdefault(run.key, []).append(bill)
    return found


def profile_part(profiles: Profiles) -> Part:
    """What a round takes, over the synchronous job's."""
    rows: list[dict[str, object]] = []
    for variant, by_setup in profiles.items():
        for setup, profile in by_setup.items():
            for name, at in (("rollout", 0), ("train", 1)):
                long = f"{fmean(part[at] for part in profile.long):.3f}" if profile.long else "-"
                rows.append(
                    {
                        "profile": variant,
                        "setup": setup,
                        "phase": name,
                        "short": f"{fmean(part[at] for part in profile.short):.3f}",
                        "long": long,
                        "mean": f"{profile.mean[at]:.3f}",
                        "worst": f"{profile.worst[at]:.3f}",
                        "period": profile.period,
                    }
                )
    words = (
        "Parts of what the same phase takes in the synchronous job. A training part below 1 has two sources: an update",
        "that does less for each token, and fewer tokens, for responses that lose a race are the long ones and never",
        "trained on. In `no race of responses` prompts alone are put off, so that all lengths are trained: what that",
        "saves costs no bias. Rewards apart: the synchronous job's rollouts without their rewards, as if those of the",
        "trace had never held them, while the packed job's are counted.",
    )
    return Part("Profiles: rounds over those of the synchronous job", rows, words)


def trace_part(found: Bills, *, phases: bool) -> Part:
    """Bills and SLOs of every system."""
    solo = found[replace(SOLO, phases=phases).key]
    rows: list[dict[str, object]] = []
    for name, run in systems(phases=phases):
        got = found[run.key]
        packed, both = run.variant != AS_IT_IS, name == "both"
        row: dict[str, object] = {"system": name, "profile": run.variant}
        row |= {"SLO of": ("promised" if run.promised else "packed") if packed else "job"}
        if phases:
            row |= {"long rounds": ("staggered" if run.stagger else "as they come") if both else "-"}
        row |= {"solo over it": told(interval(ratios(solo, got)))}
        row |= {"× whole-node": f"{fmean(bill.usd / bill.whole_node_usd for bill in got):.3f}"}
        row |= {"× fluid": f"{fmean(bill.usd / bill.fluid_usd for bill in got):.3f}"}
        row |= {"SLO kept": f"{fmean(bill.slo for bill in got):.2%}"}
        row |= {"worst": f"{max(bill.worst for bill in got):.4f}", "moves": round(fmean(bill.moves for bill in got))}
        rows.append(row)
    words = (
        "Worst: slowdown over SLO of the unluckiest job. Packed SLOs are against the packed job alone, promised ones",
        "allow the iteration time that the synchronous job was promised. Limits are those of each system's own work.",
    )
    how = "phase by phase, one seed" if phases else "at the forecast pace"
    goals = phase_goals(found) if phases else pace_goals(found)
    return Part(f"The trace, {how}: how many times its bill solo pays", rows, words, goals)


def ratios(solo: Sequence[Bill], other: Sequence[Bill]) -> list[float]:
    return [one.usd / its.usd for one, its in zip(solo, other, strict=True)]


def pace_goals(found: Bills) -> list[Goal]:
    """What the trace promises is its synchronous jobs' speed times their SLOs; stricter is that of the packed jobs."""
    goals = []
    for promised, whose in ((True, "SLOs as promised"), (False, "SLOs of the packed jobs")):
        both = found[replace(BOTH, promised=promised).key]
        over, kept = fmean(ratios(found[SOLO.key], both)), fmean(bill.slo for bill in both)
        goals.append(Goal(f"solo over both, at pace, {whose}", over, GOAL_BOTH, at_most=False))
        goals.append(Goal(f"SLOs that both keep, at pace, {whose}", kept, GOAL_SLO, at_most=False))
    return goals


def phase_goals(found: Bills) -> list[Goal]:
    goals = []
    (solo,) = found[replace(SOLO, phases=True).key]
    for promised, whose in ((True, "SLOs as promised"), (False, "SLOs of the packed jobs")):
        (bill,) = found[replace(BOTH, phases=True, promised=promised).key]
        goals.append(Goal(f"solo over both, phase by phase, {whose}", solo.usd / bill.usd, GOAL_BOTH, at_most=False))
        goals.append(Goal(f"SLOs that both keep, phase by phase, {whose}", bill.slo, GOAL_SLO, at_most=False))
    return goals


def left_part(found: Bills) -> Part:
    """How much there is to save, whoever schedules."""
    solo = found[SOLO.key]
    rows: list[dict[str, object]] = []
    for variant in (AS_IT_IS, *SYSTEMS):
        got = found[replace(BOTH, variant=variant).key]
        rows.append(
            {
                "work": variant,
                "rollout $": round(fmean(bill.rollout_usd for bill in got)),
                "train $": round(fmean(bill.train_usd for bill in got)),
                "train share": f"{fmean(bill.train_usd / bill.fluid_usd for bill in got):.0%}",
                "fluid": told(interval([s.usd / b.fluid_usd for s, b in zip(solo, got, strict=True)])),
                "whole-node": told(interval([s.usd / b.whole_node_usd for s, b in zip(solo, got, strict=True)])),
                "reached": told(interval(ratios(solo, got))),
            }
        )
    return Part("What is left: solo over the limits of the work, and over what is reached", rows, left_words(found))


def left_words(found: Bills) -> tuple[str, ...]:
    """What the limits say of the goal."""
    solo, got, before = found[SOLO.key], found[BOTH.key], found[MUX.key]
    whole = fmean(s.usd / b.whole_node_usd for s, b in zip(solo, got, strict=True))
    share = fmean(bill.train_usd / bill.fluid_usd for bill in got)
    saved = fmean(b.train_usd / a.train_usd for a, b in zip(before, got, strict=True))
    beyond = "beyond" if whole < GOAL_BOTH else "within"
    return (
        "Fluid: no node ever idle. Whole-node: nodes rented whole, and every job active for as long as it is alone.",
        f"A goal of {GOAL_BOTH} is {beyond} the whole-node limit of this packed work, {whole:.2f}. Training is",
        f"{share:.0%} of what is left, on nodes that cost 2.9 times as much; the job tier leaves {saved:.0%} of it.",
        "Jobs that end later than alone, within their SLO, meet more others, which can undercut that limit a little.",
    )


def main() -> None:
    parser = arguments("together", __doc__)
    parser.add_argument("--seeds", type=int, default=5, help="traces at the forecast pace")
    parser.add_argument("--workers", type=int, default=cpu_count() or 1, help="processes at once")
    args = parser.parse_args()
    if args.quick:
        args.seeds, args.workers = 1, 1

    def run() -> dict[str, object]:
        profiles = profiles_of(args)
        found = bills(args, profiles)
        pace, phases = (trace_part(found, phases=each) for each in (False, True))
        return shown((profile_part(profiles), pace, phases, left_part(found)))

    record("together", args, run)


if __name__ == "__main__":
    main()
