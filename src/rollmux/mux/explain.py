"""Decisions in words that a platform engineer understands: what was tried, what it would cost, why it was not taken."""

from collections.abc import Callable

from rollmux.mux.plan import Candidate, Decision, Strategy, Verdict

_GB = 1e9
_MOST_DIGITS = 9


def explain(decision: Decision, name: Callable[[str], str] = str) -> str:
    """The whole decision, one line for each thing tried. `name` gives the words by which a job may be mentioned."""
    lines = [f"Job {decision.job_id}, policy {decision.policy}: {_outcome(decision)}"]
    lines += [f"  {_line(candidate, name)}" for candidate in decision.candidates]
    for count, nearest in decision.more:
        lines.append(f"  and {count} more groups like this one: {_line(nearest, name)}")
    return "\n".join(lines)


def why_queued(decision: Decision) -> str:
    """The shortest true reason why a job has no place yet."""
    missing = [c for c in decision.candidates if c.verdict is Verdict.NO_NODES]
    if missing:
        needs = " and ".join(f"{c.limit:g} of the {c.value:g} nodes it needs in pool {c.subject}" for c in missing)
        return f"a group of its own would find {needs}, and no group can take it in"
    return "no group can take it in, and there are no nodes for a group of its own"


def why_nowhere(decision: Decision) -> str:
    """What each place lacks that was tried for a job without a place."""
    return "; ".join(_reason(candidate, str).removesuffix(".") for candidate in decision.candidates)


def in_line(before: int) -> str:
    """Why a job has no place yet, if its turn to be tried has not come."""
    return f"{before} jobs are in line before it"


def _outcome(decision: Decision) -> str:
    plan = decision.plan
    if plan is None:
        return f"no place now, {why_queued(decision)}."
    where = ", ".join(plan.placement.all_nodes)
    price = "at no added cost" if plan.added_usd_per_hour == 0 else f"for ${plan.added_usd_per_hour:.2f} more per hour"
    if plan.strategy is Strategy.ISOLATED:
        return f"{plan.group.id}, a new group on {where}, {price}."
    return f"{plan.group.id} by {plan.strategy.value} on {where}, {price}."


def _usd(amount: float) -> str:
    return f"{'-' if amount < 0 else ''}${abs(amount):.2f}"


def _line(candidate: Candidate, name: Callable[[str], str]) -> str:
    what = f"{candidate.group_id}, {candidate.strategy.value} (+${candidate.added_usd_per_hour:.2f}/h)"
    return f"{what}: {_reason(candidate, name)}"


def _apart(value: float, limit: float, digits: int) -> tuple[str, str]:
    """Two numbers with so many digits, or with as many more as are needed to tell them apart."""
    said = f"{value:.{digits}f}", f"{limit:.{digits}f}"
    return said if said[0] != said[1] or digits >= _MOST_DIGITS else _apart(value, limit, digits + 1)


def called(job_id: str, name: Callable[[str], str]) -> str:
    """A job by its id, or by the words by which it may be mentioned."""
    return f"job {job_id}" if name(job_id) == job_id else name(job_id)


def _reason(candidate: Candidate, name: Callable[[str], str]) -> str:
    subject, value, limit = candidate.subject, candidate.value, candidate.limit
    match candidate.verdict:
        case Verdict.TAKEN:
            return "taken."
        case Verdict.DEARER:
            return f"it would cost ${value:.2f}/h, if it works at all; ${limit:.2f}/h is found already."
        case Verdict.BURDEN:
            return f"its price less the worth of the work gained is {_usd(value)}/h at best; {_usd(limit)}/h is found."
        case Verdict.SATURATED:
            return f"saturated: its busiest node has {value:.0f} s of work, its longest job takes {limit:.0f} s alone."
        case Verdict.FULL:
            return f"full: it has {value:.0f} jobs, the limit is {limit:.0f}."
        case Verdict.FROZEN:
            return "takes no newcomers now: one of its nodes is lost or drained, or jobs are to change places there."
        case Verdict.NO_SLACK:
            who = called(subject, name)
            return f"{who} has hardly any time to lose, by its SLO or since it was slowed: it shares no nodes."
        case Verdict.MEMORY:
            needed, room = _apart(value / _GB, limit / _GB, 0)
            return f"node {subject} would keep {needed} GB of state, it has room for {room} GB."
        case Verdict.SHARE:
            return (
                f"no node has the time and the memory: the job needs {value:.0%} of one at least, its nodes have "
                f"{limit:.0%} of one free in all, and waiting must not cost anybody its SLO in whatever order."
            )
        case Verdict.SLO:
            seconds, allowed = _apart(value, limit, 1)
            return f"{called(subject, name)} would take {seconds} s an iteration, its SLO allows {allowed} s."
        case Verdict.NO_NODES:
            return f"pool {subject} has {limit:.0f} free nodes, {value:.0f} are needed."
