"""The program that Ray runs if an attempt has ended without a word: ends what is left of it, node by node.

Processes of the attempt are known by their environment. The program succeeds when nothing is left on any of the
attempt's nodes that live.
"""

import os
import signal
import sys
import time

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rollmux.service.local import memory
from rollmux.service.local.process_tree import Process, descendants, environ, everything, send
from rollmux.service.ray.wire import KEEPER, SUBMISSION

# How long to wait for Ray, which may be about to end these processes itself.
KINDLY_S = 3.0
ROUND_S = 0.1
NODE_S = 60.0
SWEPT, NODES = "ROLLMUX_SWEPT", "ROLLMUX_SWEPT_NODES"


def clean(swept: str) -> int:
    """Ends everything of this submission on this node, removes its memory, and says how much had to be ended."""
    until, ended = time.monotonic() + KINDLY_S, 0
    while found := _left(swept):
        if time.monotonic() >= until:
            for process in found:
                send(process, signal.SIGKILL)
                ended += 1
        time.sleep(ROUND_S)
    memory.remove_all(f"{KEEPER}={swept}")
    return ended


def _left(swept: str) -> list[Process]:
    seen = [process for process in everything() if process.alive]
    roots = [process for process in seen if _is_of(process.pid, swept)]
    below = [each for root in roots for each in descendants(root.pid, seen)]
    return list({process.pid: process for process in [*roots, *below]}.values())


def _is_of(pid: int, swept: str) -> bool:
    variables = environ(pid).split(b"\0")
    return any(f"{name}={swept}".encode() in variables for name in (KEEPER, SUBMISSION))


def main() -> None:
    swept, wanted = os.environ[SWEPT], set(os.environ[NODES].split(","))
    ray.init(log_to_driver=False, logging_level="warning")
    here = ray.get_runtime_context().get_node_id()
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]} & (wanted | {here})
    task = ray.remote(num_cpus=0, max_retries=0)(clean)
    calls = {
        node: task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(swept)
        for node in alive
    }
    failed = False
    for node, call in calls.items():
        try:
            print(f"node {node}: {ray.get(call, timeout=NODE_S)} processes were ended")
        except RayError as error:  # if the node is gone meanwhile, the next sweep does without it
            print(f"node {node}: {error}")
            failed = True
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
