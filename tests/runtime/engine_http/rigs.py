"""An engine and its fake server, put together for a test and taken apart after it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

import pytest

from rollmux.runtime.engine.http import HttpEngine, Memory, Server, Settings, Sglang, Vllm
from rollmux.runtime.engine.requests import Ended, Event, GenerationRequest, Grown
from tests.runtime.engine_http.fake_machine import BASE_BYTES
from tests.runtime.engine_http.fake_server import FakeServer

DIALECTS: Mapping[str, Any] = {"vllm": Vllm(), "sglang": Sglang(raw_logprobs=True)}
BOTH = pytest.mark.parametrize("dialect", list(DIALECTS))
PROMPT = (11, 12, 13)
PATIENT = Settings(max_length=512, wait_s=0.02, retry_s=0.01, stall_s=30.0, drain_s=2.0, ready_s=20.0)


@dataclass(frozen=True, slots=True)
class Rig:
    engine: HttpEngine
    server: FakeServer


def memory(server: FakeServer, leak_bytes: int = 0, settle_s: float = 0.2) -> Memory:
    return Memory(server.machine.held, {}, asleep_bytes=BASE_BYTES + 50, leak_bytes=leak_bytes, settle_s=settle_s)


@contextmanager
def rig(
    dialect: str,
    settings: Settings = PATIENT,
    leak_bytes: int = 0,
    canary: tuple[int, ...] = (),
    prepare: Callable[[FakeServer], None] = lambda server: None,
    **server_settings: Any,
) -> Iterator[Rig]:
    server = FakeServer(**server_settings)
    try:
        prepare(server)
        mine = memory(server, leak_bytes)
        engine = HttpEngine(Server(server.url, call_s=10.0), DIALECTS[dialect], settings, memory=mine, canary=canary)
        try:
            yield Rig(engine, server)
        finally:
            engine.close()
        assert not server.machine.dead
    finally:
        server.close()


def request(name: str = "r", count: int = 12, **settings: Any) -> GenerationRequest:
    return GenerationRequest(name, settings.pop("prompt", PROMPT), count, **({"temperature": 0.0} | settings))


def until(engine: HttpEngine, done: Callable[[list[Event]], bool], within_s: float = 30.0) -> list[Event]:
    """Drives the engine until its events are as wanted."""
    events: list[Event] = []
    limit = monotonic() + within_s
    while not done(events):
        assert monotonic() < limit, events[-3:]
        events += engine.step()
    return events


def all_ended(engine: HttpEngine) -> dict[str, Ended]:
    """Drives the engine until no request is left; what was told in pieces must be the whole."""
    events = until(engine, lambda events: not engine.unfinished)
    events += engine.step()
    ended = {event.id: event for event in events if isinstance(event, Ended)}
    assert len(ended) == sum(isinstance(event, Ended) for event in events)
    return ended


def run(engine: HttpEngine, asked: GenerationRequest) -> Ended:
    engine.submit(asked)
    return all_ended(engine)[asked.id]


def grown(engine: HttpEngine, count: int) -> list[Event]:
    """Drives the engine until so many tokens have come."""
    return until(engine, lambda events: sum(len(e.gained.tokens) for e in events if isinstance(e, Grown)) >= count)


def eventually(holds: Callable[[], bool], within_s: float = 10.0) -> bool:
    limit = monotonic() + within_s
    while not holds():
        if monotonic() > limit:
            return False
        sleep(0.005)
    return True
