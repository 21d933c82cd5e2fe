"""The cheapest way to group the jobs of one moment, by set partitioning, with a proven bound.

Every job is in exactly one co-execution group. A group is feasible if it has at most `max_group` jobs linked through
shared nodes, each on as many nodes as it wants, if host memory holds all state, and if the forecast keeps every job
within its SLO when they joined in the order of arrival. Among these a table of all sets of jobs chooses while jobs are
few, and HiGHS when they are many. All that was learnt about a set of jobs is kept: an arrival looks only at sets with
the new job, and a departure at none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, product
from math import ceil, inf
from typing import Any, NamedTuple, TypeVar

from rollmux.errors import InvalidSpec, Problem
from rollmux.mux.forecast import Forecaster
from rollmux.mux.group import Group
from rollmux.mux.hardware import Cluster
from rollmux.mux.job import JobSpec
from rollmux.mux.order import Order
from rollmux.mux.placed import ROLLOUT, TRAIN, Member, NodeUse, Placement
from rollmux.sim.limits import FORGIVEN, joined, least_node_s, pinned_bound

# Budgets of one call are counted in work, not in time, so that a result is the same on every machine.
SETS_LIMIT = 250_000
PLAYS_LIMIT = 30_000
BRANCHES_LIMIT = 10_000
# Up to this many jobs the table is quicker than the solver, whose worst moments take minutes (`benchmarks.optimum`).
TABLE_JOBS = 22
# Dollars an hour: prices are sums of node prices, and prices that differ by less count as equal.
SAME_USD = 1e-4
# The largest group, as in the paper.
MAX_GROUP = 5

# A set of phases as bits of a number: bit 2p is the rollout of the job at place p, bit 2p + 1 its training.
Phases = int
# The phases pinned to each node of a group, pool by pool.
Layout = tuple[Phases, ...]
# The places of the jobs of a group, and its price.
Priced = tuple[tuple[int, ...], float]
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Partition:
    """The groups, their price, and the least price that is still possible: equal if the groups are proven the cheapest.

    `sets` of jobs are known, `columns` of them as groups to choose among; `plays` is how many forecasts this took.
    """

    groups: tuple[Group, ...]
    usd_per_hour: float
    bound_usd_per_hour: float
    sets: int
    columns: int
    plays: int

    @property
    def complete(self) -> bool:
        return self.bound_usd_per_hour == self.usd_per_hour


@dataclass(frozen=True, slots=True)
class Column:
    """A set of jobs as one group: the cheapest group, or, if none is found yet, the least price that one may have.

    `tried` is how many ways to pin the jobs were tried in vain.
    """

    usd: float
    group: Group | None
    tried: int


class Optimum:
    """The cheapest partition of a changing set of jobs, which are told apart by their ids."""

    def __init__(
        self,
        cluster: Cluster,
        max_group: int = MAX_GROUP,
        order: Order = Order.FIFO,
        *,
        sets_limit: int = SETS_LIMIT,
        plays_limit: int = PLAYS_LIMIT,
    ) -> None:
        self.cluster, self.max_group = cluster, max_group
        self.sets_limit, self.plays_limit = sets_limit, plays_limit
        self.pinnings = Pinnings(cluster, order)
        self._cheapest: dict[Phases, float] = {}  # the cheapest known partition of each set that was looked at
        self._columns: dict[Phases, Column] = {}  # the sets that are, or may be, cheaper as one group than split

    def best(self, jobs: Sequence[JobSpec]) -> Partition:
        """The cheapest partition of exactly these jobs. New jobs count as arrived after all others, in this order."""
        gone = self.pinnings.update([job.resolve(self.cluster) for job in jobs])
        _forget(self._cheapest, gone)
        _forget(self._columns, gone)
        self.pinnings.plays_left = self.plays_limit
        all_looked_at = self._look()
        found = [(_places(phases), column) for phases, column in self._columns.items()]
        known = [(places, column.usd) for places, column in found if column.group is not None]
        groups = [column.group for _, column in found if column.group is not None]
        chosen, bound = solve_partition(known, BRANCHES_LIMIT)
        usd = sum([known[i][1] for i in chosen])
        if len(known) < len(found):
            _, bound = solve_partition([(places, column.usd) for places, column in found], None)
        pinned = pinned_bound(jobs, self.cluster, self.max_group)
        bound = max(bound, pinned) if all_looked_at else pinned
        return Partition(
            tuple([groups[i] for i in chosen]),
            usd,
            bound if bound < usd - SAME_USD else usd,
            len(self._cheapest),
            len(known),
            self.plays_limit - self.pinnings.plays_left,
        )

    def _look(self) -> bool:
        """Finds the columns, smaller sets first; False if the budget ended before all sets were looked at."""
        looked, bits = 0, [3 << 2 * place for place in self.pinnings.jobs]
        for size in range(1, min(self.max_group, len(bits)) + 1):
            for together in combinations(bits, size):
                phases = sum(together)
                if phases in self._cheapest:
                    column = self._columns.get(phases)
                    if column is None or column.group is not None:
                        continue
                elif looked >= self.sets_limit and size > 1:
                    return False
                looked += 1
                self._look_at(phases, together)
        return True

    def _look_at(self, phases: Phases, bits: Sequence[Phases]) -> None:
        apart = inf
        for n in range(1, 1 << len(bits) - 1):  # each split once: the last job is never in the first half
            half = sum([bit for i, bit in enumerate(bits) if n >> i & 1])
            apart = min(apart, self._cheapest[half] + self._cheapest[phases - half])
        before = self._columns.get(phases)
        column = self.pinnings.cheapest(phases, apart, before.tried if before is not None else 0)
        if column is not None and column.group is not None:
            apart = column.usd
        self._cheapest[phases] = apart
        if column is None:
            self._columns.pop(phases, None)
        else:
            self._columns[phases] = column


class Need(NamedTuple):
    """What a job needs of a pool: nodes for its widest phase, nodes for all its phases, and time, in whole nodes."""

    widest: int
    nodes: int
    time: float

    @staticmethod
    def of(job: JobSpec, cluster: Cluster) -> "tuple[Need, ...]":
        rollout, train = [
            Need(nodes := job.phase(kind).nodes, nodes, least_node_s(job, kind) / job.limit_s)
            for kind in (ROLLOUT, TRAIN)
        ]
        if not cluster.shared:
            return rollout, train
        return (Need(max(rollout[0], train[0]), rollout.nodes + train.nodes, rollout.time + train.time),)


class Pinnings:
    """Ways to pin jobs to the nodes of one group. Ways that differ only in the names of nodes are one."""

    def __init__(self, cluster: Cluster, order: Order) -> None:
        for pool in cluster.pools:
            if pool.max_nodes is not None:
                path, remedy = f"cluster.{pool.name}.max_nodes", "the optimum rents whatever nodes it needs"
                raise InvalidSpec("cluster", (Problem(path, pool.max_nodes, "None", remedy),))
        self.cluster, self.order = cluster, order
        self.forecaster = Forecaster()
        self.plays_left = PLAYS_LIMIT
        self.jobs: dict[int, JobSpec] = {}  # by place, in the order of arrival
        self._needs: dict[int, tuple[Need, ...]] = {}  # by the job's place: its needs of each pool
        self._uses: dict[Phases, NodeUse | None] = {}  # a node with these phases; None if they don't fit on one
        self._pools: tuple[Phases, ...] = ()  # the phases that each pool serves

    def update(self, jobs: Sequence[JobSpec]) -> Phases:
        """Sets the jobs. Returns the phases of all jobs that have left or changed."""
        wanted = {job.id: job for job in jobs}
        left = [place for place, job in self.jobs.items() if wanted.get(job.id) != job]
        for place in left:
            del self.jobs[place], self._needs[place]
        gone = sum([3 << 2 * place for place in left])
        _forget(self._uses, gone)
        here = {job.id for job in self.jobs.values()}
        for job in [job for job in wanted.values() if job.id not in here]:
            place = min(set(range(len(self.jobs) + 1)) - self.jobs.keys())
            self.jobs[place] = job
            self._needs[place] = Need.of(job, self.cluster)
        rollouts = 4 ** (max(self.jobs, default=0) + 1) // 3
        self._pools = (rollouts * 3,) if self.cluster.shared else (rollouts, rollouts * 2)
        return gone

    def cheapest(self, phases: Phases, below_usd: float, tried: int = 0) -> Column | None:
        """The cheapest linked group of these jobs that meets all SLOs, if it costs less than `below_usd`.

        The first `tried` ways to pin them failed in an earlier search, and are skipped.
        """
        places, nth = _places(phases), 0
        layouts: dict[tuple[int, int], list[Layout]] = {}
        for usd, counts in self._shapes(places, below_usd):
            choices = []
            for pool, count in enumerate(counts):
                if (pool, count) not in layouts:
                    layouts[pool, count] = list(self._layouts(self._wants(phases & self._pools[pool]), count))
                choices.append(layouts[pool, count])
            for by_pool in product(*choices):
                if len(places) > 1 and not _linked(by_pool, phases):
                    continue
                nth += 1
                if nth <= tried:
                    continue
                if len(places) > 1 and self.plays_left == 0:
                    return Column(usd, None, nth - 1)
                self.plays_left -= len(places) > 1
                group = self._group(places, by_pool)
                if self.forecaster.late(group) is None:
                    return Column(usd, group, nth - 1)
        if below_usd == inf:
            job, limit = self.jobs[places[0]], "a job that its nodes can hold and that meets its SLO alone"
            raise InvalidSpec(
                f"job {job.id!r}", (Problem("job", job.id, limit, "give it smaller state or more nodes"),)
            )
        return None

    def _shapes(self, places: Sequence[int], below_usd: float) -> list[tuple[float, tuple[int, ...]]]:
        """Numbers of nodes of each pool that could do, with their price, cheapest first.

        They are enough for the time of all jobs and for the widest phase; and few enough that all jobs are linked: each
        link is a node that two jobs share, and so need only once.
        """
        needs = list(zip(*[self._needs[place] for place in places], strict=True))
        most = sum([need.nodes for pool in needs for need in pool]) - len(places) + 1
        ranges = []
        for pool in needs:
            fewest = max(*[need.widest for need in pool], ceil(sum([need.time for need in pool]) * (1 - FORGIVEN)))
            ranges.append(range(fewest, min(most, sum([need.nodes for need in pool])) + 1))
        prices = [pool.node_type.usd_per_hour for pool in self.cluster.pools]
        shapes = []
        for counts in product(*ranges):
            usd = sum([price * count for price, count in zip(prices, counts, strict=True)])
            if sum(counts) <= most and usd < below_usd - SAME_USD:
                shapes.append((usd, counts))
        return sorted(shapes)

    def _wants(self, phases: Phases) -> tuple[tuple[Phases, int], ...]:
        """Each of these phases with the number of nodes that it wants."""
        wants = []
        for place in _places(phases):
            for bit, kind in ((1 << 2 * place, ROLLOUT), (2 << 2 * place, TRAIN)):
                if phases & bit:
                    wants.append((bit, self.jobs[place].phase(kind).nodes))
        return tuple(wants)

    def _layouts(
        self, wants: tuple[tuple[Phases, int], ...], nodes: int, most: Phases | None = None
    ) -> Iterator[Layout]:
        """Every way to spread these phases over so many nodes, each way once.

        The next node always holds the first phase. The nodes of that phase come in falling order, from `most` on.
        """
        if not wants:
            if nodes == 0:
                yield ()
            return
        if max([count for _, count in wants]) > nodes:
            return
        first, count = wants[0]
        blocks = [first] if self._fits(first) else []
        for bit, _ in wants[1:]:
            blocks += [block | bit for block in blocks if self._fits(block | bit)]
        for block in blocks:
            if most is not None and block > most:
                continue
            left = tuple([(bit, n - (block & bit > 0)) for bit, n in wants if n > (block & bit > 0)])
            for others in self._layouts(left, nodes - 1, block if count > 1 else None):
                yield (block, *others)

    def _fits(self, phases: Phases) -> bool:
        return self._use(phases) is not None

    def _use(self, phases: Phases) -> NodeUse | None:
        """A node with these phases, or None where `mux.placed` or host memory refuses them."""
        if phases not in self._uses:
            last = phases.bit_length() - 1
            before = self._use(phases ^ 1 << last) if phases ^ 1 << last else NodeUse()
            kind = TRAIN if last % 2 else ROLLOUT
            pool = self.cluster.train if kind is TRAIN else self.cluster.rollout
            self._uses[phases] = before and joined(before, (self.jobs[last // 2], kind), pool)
        return self._uses[phases]

    def _group(self, places: Sequence[int], by_pool: Sequence[Layout]) -> Group:
        """The group of these jobs, in the order of arrival. Its nodes are named after the first job."""
        arrived = [place for place in self.jobs if place in places]
        leader = self.jobs[arrived[0]].id
        nodes = [
            (f"{pool.name}/{leader}/{number}", phases)
            for pool, layout in zip(self.cluster.pools, by_pool, strict=True)
            for number, phases in enumerate(layout)
        ]
        members = []
        for place in arrived:
            rollout, train = [tuple([n for n, phases in nodes if phases >> 2 * place & bit]) for bit in (1, 2)]
            job = self.jobs[place]
            members.append(Member(job, Placement(rollout, train), job.limit_s))
        return Group(f"group/{leader}", tuple(members), self.order)


def _forget(known: dict[Phases, V], gone: Phases) -> None:
    if gone:
        for phases in [phases for phases in known if phases & gone]:
            del known[phases]


def _places(phases: Phases) -> tuple[int, ...]:
    """The places of the jobs that these phases belong to."""
    return tuple([place for place in range(phases.bit_length() + 1 >> 1) if phases >> 2 * place & 3])


def _linked(by_pool: Sequence[Layout], phases: Phases) -> bool:
    """Whether a chain of shared nodes links each job to each other."""
    rollouts = 4 ** (phases.bit_length() + 1 >> 1) // 3
    jobs: list[Phases] = []
    for layout in by_pool:
        for block in layout:
            rollout = (block | block >> 1) & rollouts
            jobs.append(rollout | rollout << 1)
    reached = jobs.pop()
    while near := [job for job in jobs if job & reached]:
        jobs = [job for job in jobs if not job & reached]
        for job in near:
            reached |= job
    return reached == phases


def solve_partition(columns: Sequence[Priced], branches: int | None) -> tuple[list[int], float]:
    """The columns that hold each place exactly once at the least price, and a proven lower bound on that price.

    For each place there must be a column that holds it alone. With many jobs, and `branches` None, the bound is that of
    the linear relaxation, and the columns are those of jobs alone.
    """
    rows = _rows(columns)
    if len(rows) <= TABLE_JOBS:
        return by_table([(sum([1 << rows[place] for place in places]), usd) for places, usd in columns], len(rows))
    return by_solver(columns, branches)


def _rows(columns: Sequence[Priced]) -> dict[int, int]:
    """Numbers for the places, in the order of the columns that hold one place alone."""
    return {place: row for row, place in enumerate(places[0] for places, _ in columns if len(places) == 1)}


def by_table(columns: Sequence[tuple[int, float]], jobs: int) -> tuple[list[int], float]:
    """The columns (a set of jobs as bits, and a price) that hold each of so many jobs once; and their price.

    It is exact: the least price of every set of jobs follows from the sets that are left without one of its columns. A
    set is looked at with the columns that hold its highest job, all sets with the same highest job at once.
    """
    numpy, _ = _solver()
    price, last = numpy.full(1 << jobs, inf), numpy.full(1 << jobs, -1, numpy.int32)
    price[0] = 0.0
    highest: list[list[int]] = [[] for _ in range(jobs)]
    for number, (held, _) in enumerate(columns):
        highest[held.bit_length() - 1].append(number)
    for job, numbers in enumerate(highest):
        for number in numbers:
            held, usd = columns[number]
            rest = numpy.zeros(1, numpy.int64)  # all sets of lower jobs that the column does not hold
            for other in range(job):
                if not held >> other & 1:
                    rest = numpy.concatenate((rest, rest | 1 << other))
            together, before = rest | held, price[rest] + usd
            less = before < price[together]
            price[together[less]], last[together[less]] = before[less], number
    chosen, left = [], (1 << jobs) - 1
    while left:
        chosen.append(int(last[left]))
        left ^= columns[chosen[-1]][0]
    return chosen, float(price[-1])


def _solver() -> tuple[Any, Any]:
    """Numpy, and HiGHS, which needs it: nothing else here imports either."""
    try:
        import highspy  # noqa: PLC0415  the solver is an extra
        import numpy as np  # noqa: PLC0415
    except ImportError as missing:
        problem = Problem("solver", "HiGHS", "installed", "pip install 'rollmux[solver]'")
        raise InvalidSpec("the optimum", (problem,)) from missing
    return np, highspy


def by_solver(columns: Sequence[Priced], branches: int | None) -> tuple[list[int], float]:
    """`solve_partition` by HiGHS, on one thread."""
    _, highspy = _solver()
    alone, rows = [i for i, (places, _) in enumerate(columns) if len(places) == 1], _rows(columns)
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(columns), len(rows)
    model.col_cost_ = [usd for _, usd in columns]
    model.col_lower_, model.col_upper_ = [0.0] * len(columns), [inf] * len(columns)
    model.row_lower_ = model.row_upper_ = [1.0] * len(rows)
    if branches is not None:
        model.integrality_ = [highspy.HighsVarType.kInteger] * len(columns)
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = [0, *accumulate([len(places) for places, _ in columns])]
    model.a_matrix_.index_ = [rows[place] for places, _ in columns for place in places]
    model.a_matrix_.value_ = [1.0] * sum([len(places) for places, _ in columns])
    solver = highspy.Highs()
    solver.silent()
    for option, value in (("threads", 1), ("random_seed", 0), ("mip_rel_gap", 0.0), ("mip_max_nodes", branches or 0)):
        solver.setOptionValue(option, value)
    solver.passModel(model)
    solver.run()
    info = solver.getInfo()
    if branches is None:
        return alone, sum(solver.getSolution().row_dual) - SAME_USD / 2
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return alone, max(0.0, info.mip_dual_bound)
    return [i for i, value in enumerate(solver.getSolution().col_value) if value > 0.5], max(0.0, info.mip_dual_bound)
