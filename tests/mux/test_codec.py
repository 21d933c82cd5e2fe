"""Values survive being written down."""

import json
from dataclasses import dataclass
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.codec import decode, encode
from rollmux.mux.hardware import PAPER_CLUSTER, Cluster
from rollmux.mux.job import JobSpec, PhaseKind, PhaseSpec, Tail
from rollmux.mux.placed import Placement

TEXT = st.text(max_size=5)
SECONDS = st.floats(allow_nan=False)
EVENTS = st.one_of(
    st.builds(ev.PhaseRequested, TEXT, st.integers(), st.sampled_from(PhaseKind), st.integers()),
    st.builds(ev.PhaseProgressed, TEXT, st.integers(), st.integers(), st.integers()),
    st.builds(
        ev.JobProfiled, TEXT, st.integers(), st.floats(allow_nan=False), st.floats(allow_nan=False), st.just(inf)
    ),
    st.just(ev.JobSubmitted(JobSpec("a", PhaseSpec(1.5, 1), PhaseSpec(2.0, gpus=8), 2.0, tail=Tail(9, 2, 0.5)))),
    st.just(ev.Tick()),
)
COMMANDS = st.one_of(
    st.builds(cmd.Queue, TEXT, st.integers(), TEXT, st.none() | st.floats(allow_nan=False)),
    st.builds(lambda nodes: cmd.Launch("a", 1, Placement(nodes, nodes)), st.lists(TEXT, max_size=3).map(tuple)),
    st.just(cmd.Grant(cmd.Lease("a", 1, PhaseKind.TRAIN, 0, 7, ("t0",), True, False))),
)


@given(EVENTS)
def test_an_event_comes_back_from_text_as_it_was(event: ev.Event) -> None:
    text = json.dumps(encode(ev.Event, event), allow_nan=False)
    back: ev.Event = decode(ev.Event, json.loads(text))  # type: ignore[arg-type]
    assert back == event
    assert type(back) is type(event)


@given(COMMANDS)
def test_a_command_comes_back_from_text_as_it_was(command: cmd.Command) -> None:
    text = json.dumps(encode(cmd.Command, command), allow_nan=False)
    assert decode(cmd.Command, json.loads(text)) == command  # type: ignore[arg-type]


@dataclass(frozen=True)
class Pair:
    both: tuple[int, str]
    maybe: float | None


@pytest.mark.parametrize("pair", [Pair((1, "a"), None), Pair((2, ""), -inf)])
def test_pairs_and_missing_values_are_kept(pair: Pair) -> None:
    assert decode(Pair, json.loads(json.dumps(encode(Pair, pair), allow_nan=False))) == pair


def test_what_a_node_was_said_to_have_before_that_nothing_used_is_read_over() -> None:
    """Every journal from before names it, in the cluster that it was begun with."""
    written = encode(Cluster, PAPER_CLUSTER)
    for pool in written.values():
        pool["node_type"].update(host_link_bytes_per_s=0.0, network_bytes_per_s=2.5e9)
    assert decode(Cluster, written) == PAPER_CLUSTER
    with pytest.raises(KeyError):
        decode(PhaseSpec, {"duration_s": 1.0, "network_bytes_per_s": 2.5e9})


def test_a_type_that_cannot_be_written_down_is_refused() -> None:
    with pytest.raises(TypeError, match="no way to write"):
        encode(complex, 1j)
