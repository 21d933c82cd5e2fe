"""Figures for Prometheus: what the controller does, and how the cluster stands when somebody looks."""

from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import median

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rollmux import __version__
from rollmux.mux.job import PhaseKind
from rollmux.mux.transitions import Job
from rollmux.protocol.views import ClusterView, JobView
from rollmux.service.host import Host

# Seconds of an answer that is not parked, and of a write: from a good disk to one that should be mended.
BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0)
# Seconds that a phase waits for its nodes: from a free node to another job's longest phase.
WAITS_S = (0.01, 0.1, 1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1800.0, 7200.0)


class Metrics:
    """The figures of one controller."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._view: ClusterView  # the cluster at the latest look
        self.calls: Counter[tuple[str, int]] = Counter()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self.answered_s = self._histogram("rollmux_call_seconds", "Calls that were not parked", BUCKETS_S).observe
        host.wrote = self._histogram("rollmux_write_seconds", "Writes to the journal", BUCKETS_S).observe
        waits = self._histogram("rollmux_wait_seconds", "From asking for a phase to its grant", WAITS_S, "kind")
        by_kind = {kind: waits.labels(kind.value) for kind in PhaseKind}
        self._tally = host.controller.tally
        host.controller.history.waited = lambda kind, seconds: by_kind[kind].observe(seconds)

    def text(self, view: ClusterView) -> bytes:
        """All figures; those of the cluster are taken from this view."""
        self._view = view
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry, whenever somebody looks."""
        host, tally = self.host, self._tally
        state = host.controller.machine.state
        info = GaugeMetricFamily("rollmux_info", "What runs", labels=("version", "policy"))
        info.add_metric((__version__, state.policy.name), 1)
        yield info
        calls = CounterMetricFamily("rollmux_calls", "Calls answered", labels=("call", "status"))
        for (call, status), count in self.calls.items():
            calls.add_metric((call, str(status)), count)
        yield calls
        yield GaugeMetricFamily("rollmux_parked_calls", "Calls that wait for news", host.parked)
        yield _counted("rollmux_events", "Events that changed something", "event", tally.events)
        yield _counted("rollmux_commands", "What followed from them", "command", tally.commands)
        yield CounterMetricFamily(
            "rollmux_expired_leases", "Leases whose holder was silent for too long", tally.expired
        )
        yield from _of_cluster(self._view)
        yield from _of_queue(host)
        yield GaugeMetricFamily("rollmux_broken", "1 if nothing can be changed any more", bool(host.broken))

    def _histogram(self, name: str, says: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, says, labels, buckets=buckets, registry=self._registry)


def _counted(name: str, says: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, says, labels=(label,))
    for value, count in counts.items():
        family.add_metric((value,), count)
    return family


def _of_queue(host: Host) -> Iterator[Metric]:
    books = host.controller.history.books
    waiting = [books.accounts[job_id] for job_id in host.controller.machine.state.backlog]
    since = [account.submitted if account.since is None else account.since for account in waiting]
    yield GaugeMetricFamily("rollmux_queue_length", "Jobs that wait for a place", len(since))
    oldest_s = host.now - min(since) if since else 0.0
    yield GaugeMetricFamily("rollmux_queue_oldest_seconds", "Since when the first of them is there", oldest_s)


def _of_cluster(view: ClusterView) -> Iterator[Metric]:
    yield CounterMetricFamily("rollmux_records", "Records in the journal", view.seq)
    yield GaugeMetricFamily("rollmux_alarms", "Plans that broke a promise, and were not followed", len(view.alarms))
    jobs = GaugeMetricFamily("rollmux_jobs", "Jobs by state", labels=("state",))
    states = Counter(job.state for job in view.jobs)
    states[Job.ENDED.value] = view.ended
    for state, count in states.items():
        jobs.add_metric((state,), count)
    yield jobs
    yield from _of_slos(view.jobs)
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


def _of_slos(jobs: tuple[JobView, ...]) -> Iterator[Metric]:
    """Only of jobs whose pace is known. If there is none, what is left of the SLOs is no figure."""
    left = [job.slo_headroom for job in jobs if job.slo_headroom is not None]
    slow = sum(share < 0 for share in left)
    yield GaugeMetricFamily("rollmux_slow_jobs", "Jobs that are slower so far than their SLO allows", slow)
    headroom = GaugeMetricFamily("rollmux_slo_headroom", "Which part of their SLOs jobs have left", labels=("of",))
    if left:
        headroom.add_metric(("worst",), min(left))
        headroom.add_metric(("median",), median(left))
    yield headroom


def _does(holders: tuple[str, ...], state: str) -> str:
    """Busy or idle, or the node's state if that is why it is neither."""
    if state != "ready":
        return state
    return "busy" if holders else "idle"
