"""A real Ray cluster for tests, started once for all of them, and attempts on it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


class RealRay:
    """A cluster: a head without nodes of ours, and those that are added, by the names of ours."""

    def __init__(self, process: "subprocess.Popen[str]", net: str) -> None:
        self._process, self._net = process, net
        self.url = str(self._answer())
        self.nodes: dict[str, str] = {}
        self._ips: dict[str, str] = {}
        self._next = 3

    def add(self, *names: str) -> str:
        """One node of Ray's that has these of ours; its id."""
        ip = f"{self._net}.{self._next}"
        self._next += 1
        node = str(self._ask(do="add", ip=ip, resources=dict.fromkeys(names, 1)))
        self.nodes |= dict.fromkeys(names, node)
        self._ips |= dict.fromkeys(names, ip)
        return node

    def ip(self, name: str) -> str:
        return self._ips[name]

    def remove(self, node: str) -> None:
        self._ask(do="remove", node_id=node)
        self.nodes = {name: each for name, each in self.nodes.items() if each != node}

    def _ask(self, **what: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the cluster is gone: {self._process.wait()}; its log says more"
        return json.loads(line)


@contextmanager
def real_ray(folder: Path, worker: int) -> Iterator[RealRay]:
    """As long as the block lasts. Each worker of a parallel run has addresses of its own."""
    net = f"127.0.{worker + 1}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "ROLLMUX_"))}
    env |= {
        "PATH": path,  # jobs find their Python there
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_health_check_initial_delay_ms": "0",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_failure_threshold": "10",
    }
    program = [sys.executable, "-m", "tests.service.ray.cluster_process", net]
    with (folder / "cluster.log").open("w") as log:
        process = subprocess.Popen(
            program, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        yield RealRay(process, net)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait(120)
        process.stdout.close()
