"""The register of nodes (I2): each node is in one state, counts are what a recount gives, rents are given back once."""

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rollmux.errors import IllegalEvent
from rollmux.mux.commands import Command, Provision, ReleaseNode
from rollmux.mux.hardware import GB, Cluster, NodeType, Pool
from rollmux.mux.node_book import NodeBook, NodeRecord, NodeState
from tests.thorough import examples

NODE = NodeType("node", 8, 1.0, 80 * GB, 1000 * GB)
RENTED, FIXED = Pool("rented", NODE), Pool("fixed", NODE, on_demand=False)
CLUSTERS = {
    "elastic": Cluster(RENTED, Pool("dear", NODE)),
    "finite": Cluster(FIXED, Pool("racks", NODE, on_demand=False)),
    "mixed": Cluster(RENTED, FIXED),
    "one pool, rented": Cluster(RENTED, RENTED),
    "one pool, fixed": Cluster(FIXED, FIXED),
}


@dataclass
class Node:
    """What a node is by the test's own account."""

    pool: str
    state: NodeState
    group: str | None = None
    cordoned: bool = False

    @property
    def shunned(self) -> bool:
        return self.cordoned or self.state is NodeState.LOST

    @property
    def is_forgotten(self) -> bool:
        return self.state is NodeState.LOST and not (self.group or self.cordoned)


def everything(book: NodeBook) -> object:
    idle = {pool: nodes for pool, nodes in book.idle.items() if nodes}
    return {n: replace(r) for n, r in book.nodes.items()}, dict(book.rented), idle, book.shunned, book.next_node


class Books(RuleBasedStateMachine):
    """A book and a second account of the same nodes, kept in the plainest way."""

    @initialize(name=st.sampled_from(sorted(CLUSTERS)))
    def open(self, name: str) -> None:
        self.cluster = CLUSTERS[name]
        self.book = NodeBook(self.cluster)
        self.nodes: dict[str, Node] = {}
        self.provisioned: list[str] = []
        self.released: list[str] = []
        self.gone: dict[str, str] = {}  # nodes that were known once, and their pools
        self.strangers = 0

    def pool(self, name: str) -> Pool:
        return next(pool for pool in self.cluster.pools if pool.name == name)

    def idle(self, pool: str) -> tuple[str, ...]:
        if self.pool(pool).on_demand:
            return ()
        able = (n for n, node in self.nodes.items() if node.pool == pool and not node.shunned and node.group is None)
        return tuple(n for n in able if self.nodes[n].state is NodeState.READY)

    def forget(self, node: str) -> None:
        self.gone[node] = self.nodes.pop(node).pool

    def pick(self, names: list[str], number: int) -> str:
        return names[number % len(names)]

    # -- groups come and go --------------------------------------------------------------------------------------

    @rule(wanted=st.lists(st.integers(0, 3), min_size=2, max_size=2), group=st.sampled_from(["g0", "g1", "g2"]))
    def a_group_takes_nodes(self, wanted: list[int], group: str) -> None:
        new: list[tuple[str, str]] = []
        for pool, count in zip(self.cluster.pools, wanted, strict=False):
            new += [(pool.name, node) for node in self.idle(pool.name)[:count]]
            if pool.on_demand:
                new += [(pool.name, f"{pool.name}-{self.book.next_node + i}") for i in range(count)]
        out: list[Command] = []
        self.book.take(tuple(new), group, out)
        asked = [Provision(node, pool) for pool, node in new if self.pool(pool).on_demand]
        assert out == asked
        for pool_name, node in new:
            self.nodes.setdefault(node, Node(pool_name, NodeState.COMING)).group = group
        self.provisioned += [command.node for command in asked]

    @precondition(lambda self: any(node.group for node in self.nodes.values()))
    @rule(numbers=st.lists(st.integers(0, 99), min_size=1, max_size=4))
    def nobody_is_pinned_any_more(self, numbers: list[int]) -> None:
        owned = [name for name, node in self.nodes.items() if node.group]
        leaving = list(dict.fromkeys(self.pick(owned, number) for number in numbers))
        out: list[Command] = []
        self.book.free(leaving, out)
        rented = [name for name in leaving if self.pool(self.nodes[name].pool).on_demand]
        assert out == [ReleaseNode(name, self.nodes[name].pool) for name in rented]
        self.released += rented
        for name in leaving:
            self.nodes[name].group = None
            if name in rented or self.nodes[name].is_forgotten:
                self.forget(name)

    # -- nodes come and go ---------------------------------------------------------------------------------------

    @rule(number=st.integers(0, 1))
    def a_stranger_joins(self, number: int) -> None:
        pool = self.cluster.pools[number % len(self.cluster.pools)]
        self.strangers += 1
        name = f"stranger{self.strangers}"
        if pool.on_demand:
            assert self.book.join(name, pool.name) == [ReleaseNode(name, pool.name)]
        else:
            assert self.book.join(name, pool.name) == []
            self.nodes[name] = Node(pool.name, NodeState.READY)

    @precondition(lambda self: self.nodes)
    @rule(number=st.integers(0, 99))
    def a_known_node_joins(self, number: int) -> None:
        name = self.pick(list(self.nodes), number)
        node = self.nodes[name]
        before = everything(self.book)
        answer = self.book.join(name, node.pool)
        if node.state is NodeState.READY:
            assert answer is None
            assert everything(self.book) == before
        else:
            assert answer == []
            node.state = NodeState.READY

    @precondition(lambda self: self.gone)
    @rule(number=st.integers(0, 99))
    def a_node_joins_after_it_was_given_back_or_lost(self, number: int) -> None:
        name = self.pick(list(self.gone), number)
        pool = self.gone[name]
        if self.pool(pool).on_demand:
            before = everything(self.book)
            assert self.book.join(name, pool) == [ReleaseNode(name, pool)]
            assert everything(self.book) == before
        else:
            assert self.book.join(name, pool) == []
            del self.gone[name]
            self.nodes[name] = Node(pool, NodeState.READY)

    @precondition(lambda self: self.nodes or self.gone)
    @rule(number=st.integers(0, 99))
    def a_node_is_lost(self, number: int) -> None:
        name = self.pick([*self.nodes, *self.gone], number)
        before = everything(self.book)
        known = name in self.nodes and self.nodes[name].state is not NodeState.LOST
        assert self.book.lose(name) == known
        if not known:
            assert everything(self.book) == before
            return
        self.nodes[name].state = NodeState.LOST
        if self.nodes[name].is_forgotten:
            self.forget(name)

    @precondition(lambda self: self.nodes or self.gone)
    @rule(number=st.integers(0, 99))
    def a_node_is_cordoned(self, number: int) -> None:
        name = self.pick([*self.nodes, *self.gone], number)
        before = everything(self.book)
        if name not in self.nodes:
            with pytest.raises(IllegalEvent, match=name):
                self.book.cordon(name)
            assert everything(self.book) == before
            return
        news = not self.nodes[name].cordoned
        assert self.book.cordon(name) == news
        if news:
            self.nodes[name].cordoned = True
        else:
            assert everything(self.book) == before

    @precondition(lambda self: self.nodes)
    @rule(number=st.integers(0, 99))
    def a_cordon_is_lifted(self, number: int) -> None:
        name = self.pick(list(self.nodes), number)
        before = everything(self.book)
        news = self.nodes[name].cordoned
        assert self.book.uncordon(name) == news
        self.nodes[name].cordoned = False
        if self.nodes[name].is_forgotten:
            self.forget(name)
        if not news:
            assert everything(self.book) == before
        with pytest.raises(IllegalEvent, match="stranger"):
            self.book.uncordon("stranger")

    @precondition(lambda self: self.nodes)
    @rule(number=st.integers(0, 99), nowhere=st.booleans())
    def a_node_joins_the_wrong_pool(self, number: int, nowhere: bool) -> None:
        name = self.pick(list(self.nodes), number)
        others = [pool.name for pool in self.cluster.pools if pool.name != self.nodes[name].pool]
        pool = "nowhere" if nowhere or not others else others[0]
        before, node = everything(self.book), self.nodes[name]
        if pool != "nowhere" and node.state is NodeState.LOST and node.group is None:  # it is only known as drained
            if self.pool(pool).on_demand:
                assert self.book.join(name, pool) == [ReleaseNode(name, pool)]
                assert everything(self.book) == before
            else:
                assert self.book.join(name, pool) == []
                node.pool, node.state = pool, NodeState.READY
            return
        with pytest.raises(IllegalEvent, match=name):
            self.book.join(name, pool)
        assert everything(self.book) == before

    @rule()
    def the_book_is_opened_again(self) -> None:
        again = NodeBook(self.cluster)
        again.restore({n: replace(r) for n, r in self.book.nodes.items()}, self.book.next_node)
        assert everything(again) == everything(self.book)
        assert again.frozen_groups() == self.book.frozen_groups()
        self.book = again

    # -- what must hold ------------------------------------------------------------------------------------------

    @invariant()
    def both_accounts_agree(self) -> None:
        if hasattr(self, "book"):
            expected = {n: NodeRecord(x.pool, x.state, x.group, x.cordoned) for n, x in self.nodes.items()}
            assert self.book.nodes == expected

    @invariant()
    def counts_are_what_a_recount_gives(self) -> None:
        if hasattr(self, "book"):
            counted = Counter(record.pool for record in self.book.nodes.values())
            assert self.book.rented == {pool.name: counted[pool.name] for pool in self.cluster.pools}
            assert self.book.shunned == sum(node.shunned for node in self.nodes.values())
            for pool in self.cluster.pools:
                assert self.book.idle.get(pool.name, ()) == self.idle(pool.name)
            assert self.book.frozen_groups() == {n.group for n in self.nodes.values() if n.shunned and n.group}

    @invariant()
    def a_rented_node_is_used_or_given_back_once(self) -> None:
        if hasattr(self, "book"):
            assert len(set(self.provisioned)) == len(self.provisioned)
            assert len(set(self.released)) == len(self.released)
            held = {name for name, node in self.nodes.items() if self.pool(node.pool).on_demand}
            assert held == set(self.provisioned) - set(self.released)
            assert all(self.nodes[name].group for name in held)

    @invariant()
    def nodes_are_ready_once_all_of_them_are(self) -> None:
        if hasattr(self, "book"):
            ready = [name for name, node in self.nodes.items() if node.state is NodeState.READY]
            assert self.book.ready(tuple(ready))
            for name in self.nodes.keys() - set(ready):
                assert not self.book.ready((*ready, name))


def test_whatever_nodes_do_each_is_in_one_state_and_every_count_is_right() -> None:
    run_state_machine_as_test(
        Books, settings=settings(max_examples=examples(600), stateful_step_count=40, deadline=None)
    )


def test_a_cordon_on_a_node_that_is_still_coming_outlives_its_coming() -> None:
    book = NodeBook(CLUSTERS["elastic"])
    book.take((("rented", "rented-0"),), "group-0", [])
    assert book.cordon("rented-0")
    assert book.join("rented-0", "rented") == []
    assert book.ready(("rented-0",))
    assert book.frozen_groups() == {"group-0"}
