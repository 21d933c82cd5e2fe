"""The live page as one file, and the policy under which a browser shows it.

It holds no data: that it fetches from the controller which it came from, with the token that its reader has. Nothing
but its own style and script, known by their hashes, is ever run, and it may speak to nobody else.
"""

import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files

# In the order in which they are joined into one script: each uses what stands before it.
SCRIPTS = ("dom.js", "store.js", "link.js", "panels.js", "gantt.js", "live.js")


def _asset(name: str) -> str:
    return (files("rollmux.service.page") / "assets" / name).read_text(encoding="utf-8")


def _style() -> str:
    return _asset("page.css")


def _script() -> str:
    return f'(() => {{\n"use strict";\n{"".join(map(_asset, SCRIPTS))}}})();\n'


def content() -> bytes:
    """The whole page."""
    parts = {"style": _style(), "script": _script()}
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html")).encode()


def _source(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def policy() -> str:
    """What the page may do."""
    return (
        f"default-src 'none'; style-src {_source(_style())}; script-src {_source(_script())}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


HEADERS = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", policy().encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)
