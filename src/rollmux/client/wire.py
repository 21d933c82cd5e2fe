"""Calls over HTTP. Each is repeated until there is an answer, and no repeat does harm: every call allows it.

A newer controller's answers may have fields that this version does not know: it ignores them.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from math import inf
from random import Random
from threading import Event
from time import monotonic
from types import NoneType
from typing import Any, TypedDict, TypeVar, Unpack, get_args, get_origin, get_type_hints

import httpx

from rollmux.client.errors import CallRefused, Unreachable
from rollmux.errors import InvalidSpec, Problem
from rollmux.mux.codec import decode, encode
from rollmux.protocol.messages import Refusal

T = TypeVar("T")

# The first repeat comes soon, as most faults are short; later ones spare a controller to which thousands come back.
FIRST_DELAY_S, LONGEST_DELAY_S = 0.05, 5.0
# An answer that is not parked takes milliseconds.
ANSWER_S = 10.0
# The most that a delay, and a call without an answer, may take, as parts of the lease time: calls are repeated so often
# that the lease outlives a fault.
DELAY_PART, ANSWER_PART = 0.2, 0.3

# The job's owner is told of a controller that has been away for QUIET_S, and again each AGAIN_S.
QUIET_S, AGAIN_S = 5.0, 300.0

# The variable that names the file of trusted certificates.
TRUSTED = "SSL_CERT_FILE"
# What Python says of a certificate that it does not trust, and what helps.
UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
TRUST = f"set {TRUSTED} to a file with the certificate of who has signed its own"

# Statuses after which a call is repeated: too many calls, and a call that was too slow on its way.
_LATER = (429, 408)
_JITTER = Random()  # a generator of its own: calls in threads must not change the job's own draws
log = logging.getLogger("rollmux")
_HTTP_LOG = logging.getLogger("httpx")


class Waits(TypedDict, total=False):
    """How long, and on what condition, to wait for an answer: see `Wire.post`."""

    wait_s: float
    patience_s: float
    unless: Callable[[], object]


def direct(url: str) -> httpx.HTTPTransport:
    """A transport to the controller itself: proxies that the environment names are for hosts outside the cluster.

    Certificates are loaded only where they are needed: loading them takes longer than a call.
    """
    try:
        return httpx.HTTPTransport(verify=not url.startswith("http:"))
    except OSError as error:  # it does not name the file
        if TRUSTED not in os.environ:
            raise
        limit, remedy = "a file with certificates", f"mend it or leave it out ({error.strerror})"
        raise InvalidSpec("connection", (Problem(TRUSTED, os.environ[TRUSTED], limit, remedy),)) from error


class Wire:
    """One process's connection to the controller. May be used by several threads."""

    def __init__(self, url: str, token: str, patience_s: float, transport: httpx.BaseTransport | None = None) -> None:
        self.url, self.token = url, token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(base_url=url.rstrip("/"), headers=headers, transport=transport or direct(url))
        self.patience_s = patience_s
        self.closing = Event()
        self._longest_delay_s, self._answer_s = LONGEST_DELAY_S, ANSWER_S
        self._told_at = -inf
        self._is_known = False  # the controller has answered at this address
        _QUIET.ours.add(url.rstrip("/") + "/v1/jobs")
        _HTTP_LOG.addFilter(_QUIET)

    def hurry(self, lease_s: float) -> None:
        """From now on leases depend on the calls: each must be repeated soon."""
        self._longest_delay_s = min(LONGEST_DELAY_S, DELAY_PART * lease_s)
        self._answer_s = min(ANSWER_S, max(1.0, ANSWER_PART * lease_s))

    def send(self, path: str, message: Any, answer: type[T], **waits: Unpack[Waits]) -> T:
        """The answer to a message."""
        return self.post(path, encode(type(message), message), answer, **waits)

    def post(
        self,
        path: str,
        body: Any,
        answer: type[T],
        *,
        wait_s: float = 0.0,
        patience_s: float = 0.0,
        unless: Callable[[], object] = lambda: None,
    ) -> T:
        """Sends plain data and returns the answer; the controller may park the call for `wait_s`.

        Raises CallRefused, Unreachable once patience is over, and what `unless` raises, called before each repeat.
        """
        began, delay_s = monotonic(), FIRST_DELAY_S
        give_up = began + (patience_s or self.patience_s)
        while True:
            try:
                limits = httpx.Timeout(self._answer_s, read=wait_s + self._answer_s)
                response = self._client.post(path, json=body, timeout=limits)
                self._let_go(response)
                if response.status_code < 500 and response.status_code not in _LATER:
                    return self._read(response, answer)
                fault = f"status {response.status_code}"
                if wait_s and response.status_code == httpx.codes.GATEWAY_TIMEOUT:
                    wait_s /= 2.0  # a proxy does not wait as long as the call was to be parked
                    body = {**body, "wait_s": wait_s}
            except (httpx.RequestError, NotAnAnswer) as error:
                fault = str(error) or type(error).__name__
                fault += f"; {TRUST}" if UNTRUSTED in fault else ""
            except RuntimeError as error:  # the HTTP client's way to say that it was closed
                if not self.closing.is_set():
                    raise
                fault = str(error)
            if monotonic() + delay_s > give_up or self.closing.wait(delay_s * _JITTER.uniform(0.5, 1.0)):
                raise Unreachable(f"no answer to {path} from {self._client.base_url}: {fault}")
            if monotonic() - began > QUIET_S:
                self._complain(fault, give_up)
            unless()
            delay_s = min(2 * delay_s, self._longest_delay_s)

    def close(self) -> None:
        self.closing.set()
        self._client.close()

    def _read(self, response: httpx.Response, kind: type[T]) -> T:
        """The answer, if the controller gave it. Once it was heard here, other answers only mean that it is away."""
        refusal = Refusal(f"status {response.status_code}{sent_on(response) or f': {response.text[:200]}'}")
        try:
            if response.is_success:
                answer = read(kind, response.json())
                self._is_known = True
                return answer
            refusal = read(Refusal, response.json())
            self._is_known = True
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if response.is_success or self._is_known:
                raise NotAnAnswer(f"status {response.status_code}, {response.text[:80]!r} is not an answer") from error
        raise CallRefused(response.status_code, refusal.error, refusal.problems)

    def _complain(self, fault: str, give_up: float) -> None:
        now = monotonic()
        if now - self._told_at > AGAIN_S:
            self._told_at = now
            where, left_s = self._client.base_url, give_up - now
            log.warning("no answer from the controller at %s (%s): tries on for %.0f s", where, fault, left_s)

    def _let_go(self, response: httpx.Response) -> None:
        """Ends a connection that was being made when the HTTP client was closed: the client has forgotten it."""
        if self.closing.is_set() and (stream := response.extensions.get("network_stream")) is not None:
            stream.close()


class _Quiet(logging.Filter):
    """Keeps our calls out of the HTTP client's log: signs of life would fill it. The script's other calls stay."""

    def __init__(self) -> None:
        super().__init__()
        self.ours: set[str] = set()  # never removed: the last calls may be answered after all is closed

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return not any(url in message for url in self.ours)


_QUIET = _Quiet()


class NotAnAnswer(Exception):
    """Not the controller has answered, but a proxy, say, while the controller is away."""


def sent_on(response: httpx.Response) -> str:
    """The address to which a proxy redirects, as one that speaks TLS alone does, in words; else "". No call follows
    it, so no token gets there."""
    there = response.headers.get("location", "").removesuffix(response.request.url.raw_path.decode())
    return f", which sends on to {there}: give that address" if response.has_redirect_location else ""


def read(kind: type[T], data: Any) -> T:
    """The value of type `kind` in these data; fields that the type does not have are ignored."""
    return decode(kind, _known(kind, data))


def _known(kind: Any, data: Any) -> Any:
    """The data without the fields that the type does not have."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return {f.name: _known(hints[f.name], data[f.name]) for f in fields(kind) if f.name in data}
    args = get_args(kind)
    if get_origin(kind) is tuple:
        return [_known(args[0], each) for each in data]
    members = [arg for arg in args if arg is not NoneType]
    return _known(members[0], data) if members and data is not None else data
