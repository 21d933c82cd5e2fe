"""Random trouble for whatever reads what others wrote: API bodies, paths, tokens, job files, cluster files (F7).

`python -m tests.service.fuzz 100` runs a million cases, without sockets; a seed gives the same cases again.
"""

import argparse
import asyncio
import copy
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

from rollmux.errors import InvalidSpec
from rollmux.mux.cluster_state import Rules
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.mux.weave import Timing
from rollmux.protocol.cluster_file import read_cluster
from rollmux.protocol.job_file import read_job_file
from rollmux.service.app import MOST_SUBMITTED_BYTES, App
from rollmux.service.errands import Errands
from rollmux.service.host import Host
from rollmux.service.launcher import Attempt, OnExit, OnNode
from rollmux.service.rates import Rates
from rollmux.service.recovery import recover
from rollmux.service.routes import ROUTES, Route
from rollmux.service.tokens import Role, Tokens
from tests.service.memory_journal import MemoryJournal
from tests.service.serving import SMALL

# So many cases in one world: jobs that are taken by chance would fill it.
PER_WORLD = 300
BLOCK = 10_000
FILES = 0.01  # of all cases are files: YAML is slow

PHASE = {
    "duration_s": 1.0,
    "nodes": 1,
    "resident_gb": 10,
    "transient_gb": 0,
    "load_s": 0.5,
    "offload_s": 0.5,
    "pause_s": 0.0,
}
JOB: dict[str, Any] = {
    "name": "taken",
    "slo": 3.0,
    "iterations": 4,
    "rollout": PHASE,
    "train": {"duration_s": 2, "nodes": 1},
    "sync_s": 1.0,
    "tail": {"requests": 64, "requests_per_node": 32, "bulk_s": 0.5},
    "staleness": 0,
    "elastic_rollout": False,
    "rollout_spares": 0,
    "priority": 0,
    "max_attempts": 3,
    "command": ["python", "train.py"],
    "env": {"A": "b"},
    "folder": "/srv",
    "processes": 2,
}
NODE = {"name": "n", "gpus": 8, "usd_per_gpu_hour": 1.85, "hbm_gb": 80, "host_memory_gb": 1000, "host_reserve_gb": 10}
CLUSTER: dict[str, Any] = {
    "rollout": {"node": {**NODE, "hbm_tb_per_s": 4, "network_gbps": 400}, "on_demand": False, "max_nodes": 2},
    "train": {"node": {**NODE, "host_link_gb_per_s": 64}, "on_demand": True},
}
BODIES: dict[str, dict[str, Any]] = {
    "attach": {"instance": "one", "rank": 0, "processes": 1, "attempt": None, "wait_s": 0.0},
    "ask": {"attempt": 1, "kind": "rollout", "iteration": 0, "rank": 0, "finished": [1], "wait_s": 0.0},
    "report": {"said": "finished", "epoch": 1, "rank": 0, "done": 1, "total": 2, "reason": "why"},
    "listen": {"attempt": 1, "epochs": [1], "rank": 0, "finished": [2], "seen": 0, "wait_s": 0.0},
    "profile": {"attempt": 1, "rollout_s": 1.0, "train_s": 1.0, "sync_s": 0.1},
    "leave": {"attempt": 1, "failed": "", "rank": 0},
}
HUGE = 10 * 1024 * 1024
WORDS = ("started", "progressed", "paused", "shrunk", "failed", "offloaded", "train", "sync", "rollout", "mine", "a/b")
NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 0.5, -0.5, 1e-9, 1e9, 1e300, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**400),
    *(float("nan"), float("inf"), float("-inf"), "", " ", "1", "NaN", "\0", "\ud800", "é" * 300, "x" * 5000, "../../x"),
    *("http://169.254.169.254/", "cos\nsystem\n(S'id'\ntR.", "$(id)", "'; DROP TABLE records; --", "😀", "\u202e"),
    *([], {}, [[]], [{}], [1] * 300, ["a"] * 300, {"a": {"b": {"c": []}}}, {"": ""}, list(range(50)), *WORDS),
)


class Nasty:
    """Makes something else of what would be right."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def changed(self, right: Any) -> Any:
        """A copy with a few values replaced, left out, or added."""
        value = copy.deepcopy(right)
        for _ in range(self.rng.choice((0, 1, 1, 1, 2, 2, 3, 6))):
            value = self._with_change(value)
        return value

    def _with_change(self, value: Any) -> Any:
        rng = self.rng
        parts = [part for part in _parts(value) if part]
        if not parts or rng.random() < 0.02:
            return self.value()
        part = rng.choice(parts)
        key = rng.choice(list(part)) if isinstance(part, dict) else rng.randrange(len(part))
        match rng.randrange(6):
            case 0:
                del part[key]
            case 1 if isinstance(part, dict):
                part[rng.choice((str(key)[:40] + "x", *WORDS, "", "\0", "a" * 300))] = self.value()
            case 2:
                part[key] = copy.deepcopy(rng.choice(parts))
            case _:
                part[key] = self.value()
        return value

    def value(self) -> Any:
        rng = self.rng
        match rng.randrange(8):
            case 0:
                return rng.randint(-5, 12)
            case 1:
                return rng.uniform(-10.0, 1000.0)
            case 2:
                return "".join(chr(rng.choice((rng.randrange(128), rng.randrange(0x3000)))) for _ in range(6))
        return copy.deepcopy(rng.choice(NASTY))

    def text(self, right: Any) -> bytes:
        """As JSON, well-formed or not."""
        rng = self.rng
        text = json.dumps(self.changed(right)).encode()
        match rng.randrange(40):
            case 0:
                return text[: rng.randrange(len(text) + 1)]
            case 1:
                at = rng.randrange(len(text) + 1)
                return text[:at] + rng.randbytes(rng.randrange(1, 4)) + text[at + 1 :]
            case 2:
                return text.replace(b"{", b'{"name": 1, "rank": 0, "attempt": 1, ', 1)
            case 3:
                depth = rng.choice((50, 500, 5_000, 100_000))
                return rng.choice((b"[", b'{"a":')) * depth
            case 4:
                return b'{"name":' * 60 + text + b"}" * 60
            case 5 if rng.random() < 0.002:
                return text[:-1] + b', "more": "' + b"x" * HUGE + b'"}'
            case 6:
                return rng.randbytes(rng.randrange(40))
        return text


def _parts(value: Any) -> Iterator[Any]:
    """Every list and every dict in it, itself included."""
    if isinstance(value, dict | list):
        yield value
        for each in value.values() if isinstance(value, dict) else value:
            yield from _parts(each)


class Nobody:
    """Starts nothing: what a random job wants run is not run."""

    def at_work(self) -> set[str]:
        return set()

    async def watch(self, nodes: Collection[str], on_node: OnNode) -> set[str]:
        return set(nodes)

    async def begin(self, on_exit: OnExit) -> set[tuple[str, int]]:
        return set()

    async def start(self, attempt: Attempt) -> None:
        pass

    async def stop(self, job_id: str, attempt: int, grace_s: float) -> None:
        pass

    async def log(self, job_id: str, lines: int) -> list[str]:
        return [f"one of {lines}"]

    async def forget(self, job_id: str) -> None:
        pass

    async def close(self) -> None:
        pass


class Fuzz:
    """One controller after the other, each without a disk or a socket, and what went wrong."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = Random(seed)
        self.nasty, self.folder = Nasty(self.rng), folder
        self.tokens = Tokens(folder, lambda: 0.0)
        self.admin = self.tokens.create(f"admin-{seed}", Role.ADMIN)
        self.seen = Counter[str]()
        self.wrong: list[str] = []

    async def run(self, cases: int) -> None:
        for first in range(0, cases, PER_WORLD):
            await self._world(min(PER_WORLD, cases - first))

    async def _world(self, cases: int) -> None:
        journal = MemoryJournal()
        rules = Rules(timing=Timing(15.0, 10.0), max_queued=50)
        controller, now = recover(journal, SMALL, RollmuxPolicy(), rules)
        errands = Errands(controller.machine, controller.jobs, Nobody(), lambda *_: {})
        self.host = Host(controller, journal, errands, now, 0.0)
        self.app = App(self.host, self.tokens)
        ticks = count()
        self.app.rates = Rates(lambda: float(next(ticks)))
        await self.host.start([])
        self.host.hurry()
        await self._call(
            "POST", b"/v1/jobs", json.dumps({**JOB, "name": "mine", "command": [], "processes": 1}).encode()
        )
        await self._call("POST", b"/v1/jobs/mine/attach", b'{"instance": "one"}')
        for _ in range(cases):
            if self.rng.random() < FILES:
                self._file()
            else:
                await self._api()
        await self.host.stop()

    async def _api(self) -> None:
        route = self.rng.choice(ROUTES)
        path = self._path(route)
        name = route.path.rpartition("/")[2]
        body = b"" if route.takes is None else self.nasty.text(BODIES.get(name, JOB))
        state = self.host.controller.machine.state
        before = (state.ledger.seq, len(self.host.controller.jobs))
        try:
            status, answer = await self._call(route.method, path, body)
        except Exception as error:  # noqa: BLE001  whatever it is, it was not to be
            self._is_wrong(f"{type(error).__name__}: {error}", route, path, body)
            return
        self.seen[f"{name} {status}"] += 1
        after = (state.ledger.seq, len(self.host.controller.jobs))
        spec = route.takes is dict
        if (name, status) == ("readyz", 503):
            return  # nothing is to wait here, so this controller is about to end
        if status >= 500 or status < 200:
            self._is_wrong(f"status {status}", route, path, body)
        elif status != 200 and (spec or status != 409) and after != before:
            self._is_wrong(f"status {status}, and it went from {before} to {after}", route, path, body)
        elif status != 200 and not json.loads(answer).get("error"):
            self._is_wrong(f"status {status} without a word", route, path, body)
        elif len(body) > MOST_SUBMITTED_BYTES and status not in (401, 404, 413):  # a stranger's is not even read
            self._is_wrong(f"status {status} for {len(body)} bytes", route, path, body)

    def _is_wrong(self, what: str, route: Route, path: bytes, body: bytes) -> None:
        self.wrong.append(f"{route.method} {route.path}: {what}; {path!r} {body[:1000]!r}")

    def _path(self, route: Route) -> bytes:
        rng = self.rng
        job, node = b"mine", b"rollout-0"
        if route.path.endswith(("/cancel", "/leave")) and rng.random() < 0.95:
            job = b"taken"  # so that the other lives on for a while
        if rng.random() < 0.05:
            job = node = rng.choice(
                (b"%00", b"%ff%fe", b"..%2f..", b"", b"%", b"a" * 3000, rng.randbytes(4).hex().encode())
            )
        path = route.path.encode().replace(b"{job}", job).replace(b"{node}", node)
        if rng.random() < 0.03:
            at = rng.randrange(len(path))
            path = path[:at] + rng.choice((b"/", b"%2e", b"\xff", b"//", b"{job}", b";")) + path[at:]
        return path

    async def _call(self, method: str, path: bytes, body: bytes) -> tuple[int, bytes]:
        rng = self.rng
        said: list[Any] = []
        bearer = b"Bearer " + self.admin.encode()
        if rng.random() < 0.01:
            bearer = rng.choice(
                (b"", b"Bearer", b"Bearer \xff", b"Basic YTpi", b"Bearer job.7b7d.", b"Bearer job." + b"z" * 99)
            )
        query = (
            b"lines=10"
            if rng.random() < 0.9
            else rng.choice((b"lines=-1", b"lines=1e9", b"%ff=%00", b"lines=%C2%B2", b"&&=="))
        )
        scope = {
            "type": "http",
            "method": method,
            "path": path.decode("latin-1"),
            "raw_path": path,
            "query_string": query,
            "headers": [(b"authorization", bearer)],
            "client": ("127.0.0.1", 1),
        }
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return parts.pop() if parts else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            said.append(message)

        await self.app(scope, receive, send)
        return said[0]["status"], said[1]["body"]

    def _file(self) -> None:
        """A file is read, or refused with what is wrong with it, and in no other way."""
        path = self.folder / "file.yaml"
        is_job = self.rng.random() < 0.5
        path.write_bytes(self.nasty.text(JOB if is_job else CLUSTER))
        try:
            read_job_file(path) if is_job else read_cluster(path)
        except InvalidSpec as error:
            self.seen["file refused"] += 1
            if not error.problems or not str(error):
                self.wrong.append(f"refused without a word: {path.read_bytes()[:1000]!r}")
        except Exception as error:  # noqa: BLE001  that is what is looked for
            self.wrong.append(f"{type(error).__name__}: {error}; {path.read_bytes()[:1000]!r}")
        else:
            self.seen["file read"] += 1


def fuzz(seed: int, cases: int) -> Fuzz:
    with tempfile.TemporaryDirectory() as folder:
        found = Fuzz(seed, Path(folder))
        asyncio.run(found.run(cases))
        return found


def block(seed: int) -> tuple[Counter[str], list[str]]:
    """What came of one block of cases, and what went wrong."""
    found = fuzz(seed, BLOCK)
    return found.seen, found.wrong


def blocks(seeds: range) -> Iterator[tuple[int, Counter[str], list[str]]]:
    """So many cases done, what came of them and what went wrong so far; on every core."""
    seen, wrong = Counter[str](), list[str]()
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for number, (more, worse) in enumerate(pool.map(block, seeds), 1):
            seen += more
            wrong += worse
            yield number * BLOCK, seen, wrong


def summary(cases: int, wrong: list[str]) -> str:
    return f"{cases} cases, wrong: {len(wrong)}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("blocks", type=int, nargs="?", default=1, help=f"so many blocks of {BLOCK} cases")
    parser.add_argument("--first", type=int, default=0, help="the first seed, one for each block")
    args = parser.parse_args()
    began, seen, wrong = time.monotonic(), Counter[str](), list[str]()
    for cases, so_far, wrong in blocks(range(args.first, args.first + args.blocks)):
        seen = so_far
        print(f"{summary(cases, wrong)}, {time.monotonic() - began:.0f} s", flush=True)
    for what, times in sorted(seen.items()):
        print(f"{times:9} {what}")
    sys.exit("\n".join(wrong[:20]) if wrong else 0)


if __name__ == "__main__":
    main()
