"""One HTML file that shows runs side by side.

The file carries its own style, script and data and may fetch nothing: its security policy allows only the style and
the script whose hashes it names. The same outcomes give the same bytes.
"""

import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files

from rollmux.report.data import facts, labels, script_json, timeline
from rollmux.report.headline import summary, table
from rollmux.sim.outcome import Outcome

# In the order in which they are joined into one script: each uses what stands before it.
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


def html_report(title: str, outcomes: Sequence[Outcome]) -> str:
    """The whole page."""
    style = asset("report.css")
    script = f'(() => {{\n"use strict";\n{"".join(map(asset, SCRIPTS))}}})();\n'
    runs = [facts(label, outcome) for label, outcome in zip(labels(outcomes), outcomes, strict=True)]
    timelines = [
        f'<script type="application/json" id="timeline-{place}">{script_json(timeline(outcome))}</script>'
        for place, outcome in enumerate(outcomes)
    ]
    parts = {
        "policy": _security_policy(style, script),
        "title": escape(title),
        "style": style,
        "summary": summary(outcomes),
        "headline": table(outcomes),
        "facts": script_json({"runs": runs}),
        "timelines": "\n".join(timelines),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], asset("page.html"))


def asset(name: str) -> str:
    """A file that comes with this package."""
    return (files("rollmux.report") / "assets" / name).read_text(encoding="utf-8")


def _security_policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _source(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
