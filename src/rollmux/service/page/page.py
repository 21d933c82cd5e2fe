"""The live page as one file, and the policy under which a browser shows it.

The page holds no data: it fetches data from the controller that it came from, with its reader's token. Only its own
style and script, known by their hashes, are ever used, and it may speak to nobody else.
"""

from rollmux.service.page.one_file import asset, filled, joined, source

# These are joined into one script, in this order: each uses what stands before it.
SCRIPTS = ("elements.js", "dom.js", "store.js", "link.js", "panels.js", "gantt.js", "live.js")


def _asset(name: str) -> str:
    return asset("rollmux.service.page", name)


def _style() -> str:
    return _asset("page.css")


def _script() -> str:
    return joined(map(_asset, SCRIPTS))


def content() -> bytes:
    """The whole page."""
    return filled(_asset("page.html"), {"style": _style(), "script": _script()}).encode()


def policy() -> str:
    """What the page may do."""
    return (
        f"default-src 'none'; style-src {source(_style())}; script-src {source(_script())}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


HEADERS = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", policy().encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)
