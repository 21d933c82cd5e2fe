"""One HTML file that shows runs side by side.

The file carries its own style, script and data and may fetch nothing: its security policy allows only the style and
the script whose hashes it names. The same outcomes give the same bytes.
"""

from collections.abc import Sequence
from html import escape

from rollmux.report.data import facts, labels, script_json, timeline
from rollmux.report.headline import summary, table
from rollmux.service.page import one_file
from rollmux.sim.outcome import Outcome

# In the order in which they are joined into one script, after elements.js, which the live page has, too.
SCRIPTS = (
    "dom.js",
    "table.js",
    "lines.js",
    "bubbles.js",
    "jobs.js",
    "timeline.js",
    "gantt_draw.js",
    "gantt.js",
    "admissions.js",
    "report.js",
)


def html_report(title: str, outcomes: Sequence[Outcome], notes: Sequence[str] = ()) -> str:
    """The whole page. `notes` say what the figures at its top don't tell by themselves."""
    style = asset("report.css")
    script = one_file.joined([one_file.asset("rollmux.service.page", "elements.js"), *map(asset, SCRIPTS)])
    runs = [facts(label, outcome) for label, outcome in zip(labels(outcomes), outcomes, strict=True)]
    timelines = [
        f'<script type="application/json" id="timeline-{place}">{script_json(timeline(outcome))}</script>'
        for place, outcome in enumerate(outcomes)
    ]
    parts = {
        "policy": _security_policy(style, script),
        "title": escape(title),
        "style": style,
        "summary": summary(outcomes) + "".join(f"<p>{escape(note)}</p>" for note in notes),
        "headline": table(outcomes),
        "facts": script_json({"runs": runs}),
        "timelines": "\n".join(timelines),
        "script": script,
    }
    return one_file.filled(asset("page.html"), parts)


def asset(name: str) -> str:
    """A file that comes with this package."""
    return one_file.asset("rollmux.report", name)


def _security_policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src {one_file.source(style)}; script-src {one_file.source(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
