"""Where a controller, or whatever speaks HTTP, may be called."""

from urllib.parse import urlsplit


def is_address(url: str) -> bool:
    """Whether something may be called there."""
    try:
        parts = urlsplit(url)  # which passes over line breaks
        is_plain = url.isprintable() and " " not in url
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and is_plain
    except ValueError:  # of its port, or of half an IPv6 address
        return False
