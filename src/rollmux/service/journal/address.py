"""Where a journal on a server is: a PostgreSQL URL that may name a schema, and how to speak of it."""

import re
from dataclasses import dataclass, field
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from rollmux.service.journal.values import JournalAway

# The schema if the URL names none: one schema for each cluster.
SCHEMA = "rollmux"
_ONE_AT = re.compile(r"[a-z]+://([^@/]*@)?[^@]*")  # with two @ the first would end a password, whose rest is shown
_A_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class Address:
    """`parameters` are those of libpq, password and all; `shown` is what anybody may read."""

    parameters: dict[str, str | int] = field(repr=False)
    schema: str
    shown: str


def address(url: str) -> Address:
    """Reads a URL. Raises JournalAway if it can't be read, without a word of what the URL says."""
    try:
        place, _, query = url.partition("?")
        if not _ONE_AT.fullmatch(place):
            raise ValueError
        asked = [part for part in query.split("&") if part]
        schemas = [unquote(part.partition("=")[2]) for part in asked if part.startswith("schema=")]
        rest = "&".join(part for part in asked if not part.startswith("schema="))
        found = conninfo_to_dict(f"{place}?{rest}")
    except (ValueError, psycopg.Error):
        # Neither error is given as the cause: their messages quote parts of the URL.
        written = "it should be as postgresql://user@host:5432/db, with %40 and %2F for @ and / in a password"
        raise JournalAway(f"the journal's URL can't be read: {written}") from None
    parameters = {name: value for name, value in found.items() if value is not None}
    schema = schemas[-1] if schemas else SCHEMA
    if not _A_SCHEMA.fullmatch(schema):
        rule = "a name of 1 to 63 small letters, digits and _ that begins with no digit, nor with pg_"
        raise JournalAway(f"a journal's schema is {rule}, not {schema[:80]!r}")
    user, host = (f"{parameters.get(name) or ''}" for name in ("user", "host"))
    port, base = (f"{parameters.get(name) or ''}" for name in ("port", "dbname"))
    place = f"{user}{'@' if user else ''}{host}{':' if port else ''}{port}/{base}"
    return Address(parameters, schema, f"journal {schema} at postgresql://{place}")
