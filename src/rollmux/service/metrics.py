"""Figures for Prometheus: what the controller does, and how the cluster stands when somebody looks."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rollmux.protocol.views import ClusterView
from rollmux.service.host import Host
from rollmux.service.views import cluster_view

# Seconds of an answer that is not parked, and of a write: from a good disk to one that should be mended.
BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0)


class Metrics:
    """The figures of one controller."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.calls: Counter[tuple[str, int]] = Counter()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        writes = Histogram("rollmux_write_seconds", "Writes to the journal", buckets=BUCKETS_S, registry=self._registry)
        host.wrote = writes.observe

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry, whenever somebody looks."""
        host = self.host
        calls = CounterMetricFamily("rollmux_calls", "Calls answered", labels=("call", "status"))
        for (call, status), count in self.calls.items():
            calls.add_metric((call, str(status)), count)
        yield calls
        yield from _of_cluster(cluster_view(host.controller, host.now, None, host.broken))
        backlog = len(host.controller.machine.state.backlog)
        yield GaugeMetricFamily("rollmux_queue_length", "Jobs that wait for a place", backlog)
        yield GaugeMetricFamily("rollmux_broken", "1 if nothing can be changed any more", bool(host.broken))


def _of_cluster(view: ClusterView) -> Iterator[Metric]:
    yield CounterMetricFamily("rollmux_records", "Events that changed something", view.seq)
    yield GaugeMetricFamily("rollmux_alarms", "Plans that broke a promise, and were not followed", len(view.alarms))
    jobs = GaugeMetricFamily("rollmux_jobs", "Jobs by state", labels=("state",))
    for state, count in Counter(job.state for job in view.jobs).items():
        jobs.add_metric((state,), count)
    yield jobs
    nodes = GaugeMetricFamily("rollmux_nodes", "Nodes by pool and what they do", labels=("pool", "does"))
    for (pool, does), count in Counter((node.pool, _does(node.holders, node.state)) for node in view.nodes).items():
        nodes.add_metric((pool, does), count)
    yield nodes
    phases = GaugeMetricFamily("rollmux_phases", "Phases by kind and state", labels=("kind", "state"))
    for (kind, state), count in Counter((lane.kind, lane.state) for job in view.jobs for lane in job.lanes).items():
        phases.add_metric((kind, state), count)
    yield phases
    usd = GaugeMetricFamily("rollmux_usd_per_hour", "The price of an hour", labels=("of",))
    for name, value in (
        ("shared", view.usd_per_hour),
        ("alone", view.usd_per_hour_alone),
        ("fluid", view.usd_per_hour_fluid),
    ):
        usd.add_metric((name,), value)
    yield usd


def _does(holders: tuple[str, ...], state: str) -> str:
    """Busy, idle, or why it is neither."""
    if state != "ready":
        return state
    return "busy" if holders else "idle"
