"""The top of the page: what each run costs, and how many SLOs it breaks. Plain HTML, readable without scripts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import inf, isfinite

from rollmux.report.data import labels
from rollmux.sim.outcome import Outcome, PoolHours


@dataclass(frozen=True, slots=True)
class Column:
    """One figure that the table shows for every run. `best` picks the best of all values: min or max."""

    label: str
    value: Callable[[Outcome], float]
    text: Callable[[float], str]
    best: Callable[[Sequence[float]], float]


def ratio(value: float, to: float) -> float:
    """`value / to`, infinite if `to` is 0."""
    return value / to if to > 0 else inf


def usd(value: float) -> str:
    return f"${value:,.2f}"


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _long(hours: float) -> str:
    return f"{hours:,.1f} h" if hours >= 3 else f"{60 * hours:,.1f} min"


def _times(value: float) -> str:
    return f"{value:.3f}×"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _utilisation(hours: PoolHours) -> float:
    return ratio(hours.busy, hours.paid)


COLUMNS = (
    Column("Total USD", lambda run: run.usd_total, usd, min),
    Column("USD per hour, mean", lambda run: ratio(run.usd_total, run.billed_h), usd, min),
    Column("× fluid limit", lambda run: ratio(run.usd_total, run.fluid_usd), _times, min),
    Column("× whole-node limit", lambda run: ratio(run.usd_total, run.whole_node_usd), _times, min),
    Column("SLOs kept", lambda run: run.slo_attainment, percent, max),
    Column("Moves", lambda run: run.moves, _count, min),
    Column("Restarts", lambda run: run.restarts, _count, min),
    Column("Peak rollout nodes", lambda run: run.peak_rollout, _count, min),
    Column("Peak training nodes", lambda run: run.peak_train, _count, min),
    Column("Rollout pool busy", lambda run: _utilisation(run.rollout), percent, max),
    Column("Training pool busy", lambda run: _utilisation(run.train), percent, max),
)


def summary(outcomes: Sequence[Outcome]) -> str:
    """In words: which run is cheapest and which SLOs it breaks, and which is cheapest with every SLO kept."""
    if not outcomes:
        return "<p>No run was given, so there is nothing to compare.</p>"
    names = labels(outcomes)
    order = sorted(range(len(outcomes)), key=lambda place: (outcomes[place].usd_total, place))
    first = order[0]
    run = outcomes[first]
    what = "Cheapest: " if len(outcomes) > 1 else ""
    words = [f"{what}<strong>{escape(names[first])}</strong>, {usd(run.usd_total)} over {_long(run.makespan_h)}."]
    words.append(_broken(run))
    kept = [place for place in order if all(job.met for job in outcomes[place].jobs)]
    if kept and kept[0] != first:
        safe = outcomes[kept[0]]
        more = f", which is {percent(safe.usd_total / run.usd_total - 1)} more" if run.usd_total else ""
        name = escape(names[kept[0]])
        words.append(f"Cheapest that keeps every SLO: <strong>{name}</strong>, {usd(safe.usd_total)}{more}.")
    elif not kept and len(outcomes) > 1:
        words.append("No policy keeps every SLO.")
    if len(order) > 1:
        dearest = order[-1]
        words.append(f"Dearest: {escape(names[dearest])}, {usd(outcomes[dearest].usd_total)}.")
    return f"<p>{' '.join(words)}</p>"


def table(outcomes: Sequence[Outcome]) -> str:
    """A row per run; the best value of a column carries a star and a word, unless all are the same."""
    if not outcomes:
        return ""
    head = "".join(f'<th scope="col">{escape(column.label)}</th>' for column in COLUMNS)
    rows = []
    values = [[column.value(run) for run in outcomes] for column in COLUMNS]
    for place, name in enumerate(labels(outcomes)):
        cells = "".join(
            _cell(column, place, found, outcomes[place]) for column, found in zip(COLUMNS, values, strict=True)
        )
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Headline figures, a row per policy">'
        '<table id="headline-table"><caption><span class="caption">Every policy on the same workload. A star marks the '
        f'best value of a column.</span></caption><thead><tr><th scope="col">Policy</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(column: Column, place: int, values: Sequence[float], run: Outcome) -> str:
    value = values[place]
    known = [found for found in values if isfinite(found)]
    text = column.text(value) if isfinite(value) else "–"
    if column.label == "SLOs kept":
        broken = sum(not job.met for job in run.jobs)
        text += f' <span class="aside">({broken} broken)</span>' if broken else ""
    if not known or len(set(known)) == 1 or value != column.best(known):
        return f"<td>{text}</td>"
    star = '<span aria-hidden="true">★</span><span class="unseen">best: </span>'
    return f'<td class="best">{star} {text}</td>'


def _broken(run: Outcome) -> str:
    broken = sum(not job.met for job in run.jobs)
    if not run.jobs:
        return "It ran no job."
    if not broken:
        return f"It keeps the SLO of every one of its {len(run.jobs):,} jobs."
    return f"It breaks the SLO of {broken:,} of {len(run.jobs):,} jobs."
