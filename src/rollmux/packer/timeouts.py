"""How long a test case of generated code may run, learnt online from the correct runs of that case.

Invariant: a limit is never below the floor nor above the ceiling, and it exceeds the slowest correct run remembered for
its case by the slack, as far as the ceiling allows. Audits measure what the limits cost; they decide no reward.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from rollmux.checks import MAX_COUNT, MAX_SECONDS, Checks
from rollmux.packer.false_kills import FalseKills


@dataclass(frozen=True, slots=True)
class TimeoutSettings:
    """Floor, slack and ceiling are the paper's.

    The CPU limit is the adaptive one, for contention is not the program's fault. The wall limit catches programs that
    sleep; it is `wall_factor` times as long, enough for a core shared by two.
    With `prior_after` above 0, a case without a correct run goes by the slowest one of its group, once the group has
    had that many; with 0 it gets the ceiling. Every `audit_every`th kill is audited, from the first one on.
    """

    floor_s: float = 2.0
    slack: float = 1.5
    ceiling_s: float = 30.0
    wall_factor: float = 2.0
    prior_after: int = 0
    audit_every: int = 20
    most_cases: int = 100_000

    def __post_init__(self) -> None:
        checks = Checks("timeouts")
        known = checks.number("floor_s", self.floor_s, 1e-3, MAX_SECONDS, "give CPU seconds that every run gets")
        if known:
            checks.number("ceiling_s", self.ceiling_s, self.floor_s, MAX_SECONDS, "give at least the floor")
        checks.number("slack", self.slack, 1.0, 1e6, "1.5 allows half as long again as the slowest correct run")
        checks.number("wall_factor", self.wall_factor, 1.0, 1e6, "1 lets contention kill correct programs")
        checks.whole("prior_after", self.prior_after, 0, MAX_COUNT, "0 gives a new case the ceiling")
        checks.whole("audit_every", self.audit_every, 1, MAX_COUNT, "1 audits every kill")
        checks.whole("most_cases", self.most_cases, 1, MAX_COUNT, "give the cases to remember")
        checks.require()

    @property
    def widest(self) -> "Limits":
        """The limits of an audit, and of a case of which nothing is known."""
        return Limits(self.ceiling_s, self.ceiling_s * self.wall_factor)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may take before its process tree is killed: by CPU time, or by the clock."""

    cpu_s: float
    wall_s: float


class End(Enum):
    """How a run ended, as the sandbox saw it."""

    CORRECT = "correct"
    INCORRECT = "incorrect"  # a wrong answer, a crash, or too much memory or output: the program's own doing
    KILLED = "killed"  # by one of its two time limits
    BROKEN = "broken"  # the sandbox failed: nothing is known of the program


class Verdict(Enum):
    """What a run says about the program."""

    PASSED = "passed"
    WRONG = "wrong"
    TIMEOUT = "timeout"
    ERROR = "error"


_VERDICTS = {
    End.CORRECT: Verdict.PASSED,
    End.INCORRECT: Verdict.WRONG,
    End.KILLED: Verdict.TIMEOUT,
    End.BROKEN: Verdict.ERROR,
}


@dataclass(frozen=True, slots=True)
class Run:
    """A run of one test case that has ended, with the limits that it ran under."""

    case: str
    end: End
    cpu_s: float
    wall_s: float
    limits: Limits
    group: str | None = None

    def __post_init__(self) -> None:
        checks = Checks("run")
        checks.number("cpu_s", self.cpu_s, 0.0, MAX_SECONDS, "give the CPU seconds of the whole process tree")
        checks.number("wall_s", self.wall_s, 0.0, MAX_SECONDS, "give the seconds from start to end")
        checks.require()


@dataclass(frozen=True, slots=True)
class Judgement:
    """The final verdict. If `audit` is set, run the same again with these limits, in nobody's way; tell `audited`."""

    verdict: Verdict
    audit: Limits | None = None


@dataclass(frozen=True, slots=True)
class Anchor:
    """The longest CPU time and the longest wall time of the correct runs, of which `seen` were seen."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    seen: int = 0

    def with_run(self, cpu_s: float, wall_s: float) -> "Anchor":
        return Anchor(max(self.cpu_s, cpu_s), max(self.wall_s, wall_s), self.seen + 1)


class TimeoutPolicy:
    """It is asked for limits before a run, and told of every run that ended. Forgets cases that came up longest ago."""

    def __init__(self, settings: TimeoutSettings | None = None) -> None:
        self.settings = settings or TimeoutSettings()
        self._cases: dict[str, Anchor] = {}
        self._groups: dict[str, Anchor] = {}
        self._counts = FalseKills()

    @property
    def false_kills(self) -> FalseKills:
        return self._counts

    def limits(self, case: str, group: str | None = None) -> Limits:
        """What the next run of a case may take."""
        anchor = self._cases.get(case) or self._prior(group)
        if anchor is None:
            return self.settings.widest
        cpu_s = self._adaptive_s(anchor.cpu_s)
        return Limits(cpu_s, self.settings.wall_factor * max(cpu_s, self._adaptive_s(anchor.wall_s)))

    def judge(self, run: Run) -> Judgement:
        """What the run says about the program. A run that finished by itself is not checked against its limits here."""
        verdict = _VERDICTS[run.end]
        if verdict is Verdict.ERROR:
            return Judgement(verdict)
        below_ceiling = run.limits.cpu_s < self.settings.ceiling_s
        killed = verdict is Verdict.TIMEOUT and below_ceiling
        audit = killed and self._counts.killed % self.settings.audit_every == 0
        self._counts = replace(self._counts, runs=self._counts.runs + 1, killed=self._counts.killed + killed)
        if verdict is Verdict.PASSED:
            self.learn(run.case, run.cpu_s, run.wall_s, run.group)
        elif run.case in self._cases:
            self._remember(self._cases, run.case, self._cases[run.case])
        return Judgement(verdict, self.settings.widest if audit else None)

    def audited(self, run: Run) -> None:
        """Is told how an audit ended. If it passed, it raises the anchor, so that the next such run is not killed."""
        if run.end is End.BROKEN:
            return
        passed = run.end is End.CORRECT
        self._counts = replace(
            self._counts,
            audited=self._counts.audited + 1,
            would_have_passed=self._counts.would_have_passed + passed,
        )
        if passed:
            self.learn(run.case, run.cpu_s, run.wall_s, run.group)

    def learn(self, case: str, cpu_s: float, wall_s: float, group: str | None = None) -> None:
        """Is told of a correct run, of a response or of a reference solution."""
        self._remember(self._cases, case, self._cases.get(case, Anchor()).with_run(cpu_s, wall_s))
        if group is not None:
            self._remember(self._groups, group, self._groups.get(group, Anchor()).with_run(cpu_s, wall_s))

    def _adaptive_s(self, anchor_s: float) -> float:
        settings = self.settings
        return min(max(settings.floor_s, settings.slack * anchor_s), settings.ceiling_s)

    def _prior(self, group: str | None) -> Anchor | None:
        anchor = self._groups.get(group) if group is not None and self.settings.prior_after else None
        return anchor if anchor is not None and anchor.seen >= self.settings.prior_after else None

    def _remember(self, anchors: dict[str, Anchor], key: str, anchor: Anchor) -> None:
        anchors.pop(key, None)
        anchors[key] = anchor
        if len(anchors) > self.settings.most_cases:
            del anchors[next(iter(anchors))]

    def state(self) -> dict[str, Any]:
        """Plain data that pass through JSON unchanged."""
        counts = self._counts
        return {
            "cases": [[key, each.cpu_s, each.wall_s, each.seen] for key, each in self._cases.items()],
            "groups": [[key, each.cpu_s, each.wall_s, each.seen] for key, each in self._groups.items()],
            "counts": [counts.runs, counts.killed, counts.audited, counts.would_have_passed],
        }

    @classmethod
    def from_state(cls, settings: TimeoutSettings, state: dict[str, Any]) -> "TimeoutPolicy":
        """The policy that goes on where the saved one stopped; if it remembers fewer cases, the oldest are dropped."""
        checks = Checks("timeouts_state")
        if checks.keys(state, ("cases", "groups", "counts")):
            _check_anchors(checks, "cases", state["cases"])
            _check_anchors(checks, "groups", state["groups"])
            _check_row(checks, "counts", state["counts"], (MAX_COUNT,) * 4)
        checks.require()
        policy = cls(settings)
        for anchors, saved in ((policy._cases, state["cases"]), (policy._groups, state["groups"])):
            for key, cpu_s, wall_s, seen in saved:
                policy._remember(anchors, key, Anchor(cpu_s, wall_s, seen))
        policy._counts = FalseKills(*state["counts"])
        return policy


def _check_anchors(checks: Checks, name: str, rows: Sequence[Sequence[Any]]) -> None:
    for place, (key, *numbers) in enumerate(rows):
        if not isinstance(key, str):
            checks.report(f"{name}[{place}]", key, "a name", "restore from what state() gave")
        _check_row(checks, f"{name}[{place}]", numbers, (MAX_SECONDS, MAX_SECONDS, MAX_COUNT))


def _check_row(checks: Checks, name: str, row: Sequence[Any], limits: Sequence[float]) -> None:
    if len(row) != len(limits):
        checks.report(name, row, f"{len(limits)} numbers", "restore from what state() gave")
    for value, limit in zip(row, limits, strict=False):
        checks.number(name, value, 0.0, limit, "restore from what state() gave")


@dataclass(frozen=True, slots=True)
class Replayed:
    """The same trials under the fixed ceiling and under the policy; `audit_s` is spent beside, in nobody's way."""

    trials: int
    fixed_s: float
    adaptive_s: float
    audit_s: float
    falsely_killed: int
    false_kills: FalseKills


def replay(policy: TimeoutPolicy, trials: Sequence[tuple[str, float, bool]], at_once: int = 1) -> Replayed:
    """Plays trials `(case, seconds, correct)` in order; `seconds` are what the program takes without a limit.

    `at_once` trials start together, so that none of them learns from another.
    """
    ceiling_s = policy.settings.ceiling_s
    fixed_s = adaptive_s = audit_s = 0.0
    falsely_killed = 0
    for begin in range(0, len(trials), at_once):
        together = [(trial, policy.limits(trial[0])) for trial in trials[begin : begin + at_once]]
        for trial, limits in together:
            _, seconds, correct = trial
            judged = policy.judge(ended(trial, limits))
            fixed_s += min(seconds, ceiling_s)
            adaptive_s += min(seconds, limits.cpu_s)
            falsely_killed += correct and limits.cpu_s < seconds <= ceiling_s
            if judged.audit is not None:
                audit_s += min(seconds, judged.audit.cpu_s)
                policy.audited(ended(trial, judged.audit))
    return Replayed(len(trials), fixed_s, adaptive_s, audit_s, falsely_killed, policy.false_kills)


def ended(trial: tuple[str, float, bool], limits: Limits) -> Run:
    """How a trial ends if it has a core to itself."""
    case, seconds, correct = trial
    spent_s = min(seconds, limits.cpu_s)
    finished = End.CORRECT if correct else End.INCORRECT
    return Run(case, finished if seconds <= limits.cpu_s else End.KILLED, spent_s, spent_s, limits)
