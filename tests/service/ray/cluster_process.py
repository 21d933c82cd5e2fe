"""A real Ray cluster of several nodes on this machine, in a process of its own: told by lines of JSON what to do.

It lives on loopback addresses; not on 127.0.0.1, which Ray would replace by the machine's own. It ends with its input.
Another cluster may be on this machine, of whoever else works there: ports are free ones, and the folder is its own. Ray
notes there which is its newest cluster, and starts the programs of jobs on that one.
"""

import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

STORE_BYTES = 80 * 2**20


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def main() -> None:
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints is not an answer
    net = sys.argv[1]
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # paths of sockets have to be short
    os.environ["RAY_TMPDIR"] = folder
    (Path(folder) / "ray").mkdir()  # where no cluster has ever been Ray fails to note one
    common: dict[str, Any] = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            **common,
            "node_ip_address": f"{net}.2",
            "include_dashboard": True,
            "dashboard_host": "127.0.0.1",
            "dashboard_port": free_port(),
            "dashboard_agent_listen_port": free_port(),  # without it no job can be submitted
        },
    )
    nodes: dict[str, Any] = {}

    def add(ip: str, resources: dict[str, float]) -> str:
        node = cluster.add_node(**common, node_ip_address=ip, resources=resources)
        nodes[node.node_id] = node
        return str(node.node_id)

    def remove(node_id: str) -> str:
        """As if its machine had lost its power."""
        cluster.remove_node(nodes.pop(node_id), allow_graceful=False)
        return node_id

    calls: dict[str, Callable[..., str]] = {"add": add, "remove": remove}
    try:
        print(json.dumps(f"http://{cluster.head_node.webui_url}"), file=said, flush=True)
        for line in sys.stdin:
            told = json.loads(line)
            print(json.dumps(calls[told.pop("do")](**told)), file=said, flush=True)
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
