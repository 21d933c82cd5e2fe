"""Addresses at which a controller, or another HTTP server, may be called."""

from urllib.parse import urlsplit


def is_address(url: str) -> bool:
    """Whether an HTTP server may be called at this URL."""
    try:
        parts = urlsplit(url)  # it drops line breaks, so `url` itself is checked for them
        is_plain = url.isprintable() and " " not in url
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and is_plain
    except ValueError:  # for a bad port, or half an IPv6 address
        return False
