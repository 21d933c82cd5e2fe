"""A connection to the journal's server on which nothing waits for ever.

Invariant: what a statement is said to have done is as durable as the server promises, or the connection is lost.
"""

import json
import time
from collections.abc import Generator
from typing import Any, Self, TypeVar

import psycopg
from psycopg.errors import Diagnostic

from rollmux.service.journal.address import Address

# A statement that takes longer has failed, and what it did is undone.
STATEMENT_S = 10.0
# A server that is silent for so much longer is lost. By itself it does not end a commit that waits for a standby.
BEYOND_S = 5.0
# A network that swallows everything is noticed on both sides within some ten seconds; the URL may say otherwise.
_CONNECTION = {
    "connect_timeout": 5,
    "application_name": "rollmux",
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
# These hold whatever settings the server, the database or the role has of its own.
_SETTINGS = {
    "client_encoding": "UTF8",
    "client_min_messages": "warning",  # else a commit that no standby has would be done without a word
    "extra_float_digits": "1",  # else numbers would come back rounded
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "transaction_timeout": "0",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10000",  # keepalives say nothing while an answer is under way
}
# Sets those of the settings that the server knows: some may be newer than the server.
_SET = (
    "SELECT set_config(name, value, false) FROM json_each_text(%s) AS own (key, value) JOIN pg_settings ON name = key"
)
# The function of the server that says, in whatever language, that a commit no longer waits for its standbys.
_WAITS_FOR_STANDBYS = "SyncRepWaitForLSN"
T = TypeVar("T")


class Session(psycopg.Connection[tuple[Any, ...]]):
    """A connection that is lost, and closed, once the server is silent for too long or a commit missed its standbys."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._longest_s = STATEMENT_S + BEYOND_S
        self._alone = False  # a commit has not reached the standbys
        self.add_notice_handler(self._hear)

    @classmethod
    def to(cls, address: Address, wants: str, statement_s: float) -> Self:
        parameters = _CONNECTION | {"target_session_attrs": wants} | address.parameters
        found = cls.connect("", autocommit=True, **parameters)  # type: ignore[arg-type]
        found._longest_s = statement_s + BEYOND_S
        own = {"search_path": address.schema, "statement_timeout": f"{round(1000 * statement_s)}"}
        try:
            found.execute(_SET, (json.dumps(_SETTINGS | own),))
        except BaseException:
            found.close()
            raise
        return found

    def wait(self, gen: Generator[Any, Any, T], *arguments: Any, **more: Any) -> T:
        """All that psycopg does with the server passes here."""
        found = super().wait(self._while_it_speaks(gen), *arguments, **more)
        if self._alone:
            raise self._lost("a commit did not wait for the synchronous standbys")
        return found

    def _while_it_speaks(self, steps: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        ready = None
        until = time.monotonic() + self._longest_s
        while True:
            try:
                wanted = steps.send(ready)
            except StopIteration as end:
                found: T = end.value
                return found
            ready = yield wanted  # while the server says nothing, this gives nothing, ten times a second
            if ready:
                until = time.monotonic() + self._longest_s
            elif time.monotonic() > until:
                raise self._lost(f"silent for {self._longest_s:g} s, as where a synchronous standby is away")

    def _lost(self, why: str) -> psycopg.OperationalError:
        """Closes and does not cancel: a server that is told to wait no more for a standby calls the commit done."""
        self.close()
        return psycopg.OperationalError(why)

    def _hear(self, notice: Diagnostic) -> None:
        self._alone |= notice.source_function == _WAITS_FOR_STANDBYS
