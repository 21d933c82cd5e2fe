"""The processes of a job come to the same secret by themselves, and know at which address they are reached."""

import socket

import pytest

import rollmux
from rollmux.client import kin
from rollmux.client.kin import LOOPBACK, Kin, _host
from rollmux.errors import InvalidSpec
from tests.client.world import World, job_data
from tests.ports import HAS_IPV6


def test_the_processes_of_an_attempt_share_a_key_and_others_don_t() -> None:
    world = World()
    muxes = [world.connect(job_data("a"), rank=rank, processes=2) for rank in range(2)]
    mine, other = (mux.kin for mux in muxes)
    assert (mine.rank, other.rank, mine.processes, mine.attempt) == (0, 1, 2, 1)
    assert mine.key("ranks") == other.key("ranks") != mine.key("else")
    for changed in (Kin(0, 2, 2, mine.host, "a", "secret"), Kin(0, 2, 1, mine.host, "b", "secret")):
        assert changed.key("ranks") != mine.key("ranks")
    assert Kin(0, 2, 1, "10.0.0.9", "a", "secret").key("ranks") == mine.key("ranks")
    assert "secret" not in repr(mine)
    for mux in muxes:
        mux.close()


def test_without_a_controller_a_process_is_alone() -> None:
    mux = rollmux.connect(url="")
    assert (mux.kin, mux.train_nodes) == (Kin(), ())
    with pytest.raises(InvalidSpec, match="ROLLMUX_TOKEN"):
        mux.kin.key("ranks")


@pytest.mark.parametrize("url", ["http://127.0.0.1:8421", "http://localhost:1"])
def test_its_address_is_that_of_the_interface_by_which_the_controller_is_reached(url: str) -> None:
    assert _host(url) == LOOPBACK


def test_a_name_that_only_this_machine_takes_for_its_own_is_not_the_address_that_others_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def towards(name: str) -> str:
        asked.append(name)
        return "127.0.1.1" if len(asked) == 1 else "10.0.0.5"

    monkeypatch.setattr(kin, "_towards", towards)
    assert _host("http://head:8421") == "10.0.0.5"
    assert asked[:2] == ["head", "192.0.2.1"]


@pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")
def test_where_the_controller_is_reached_by_ipv6_alone_so_are_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _host("http://[::1]:8421") == "::1"
    towards = {"head": "::1", "192.0.2.1": LOOPBACK, "2001:db8::1": "fd00::5"}
    monkeypatch.setattr(kin, "_towards", towards.__getitem__)
    assert _host("http://head:8421") == "fd00::5"


def test_where_nothing_is_known_of_the_controller_s_name_it_is_an_address_of_this_machine() -> None:
    with socket.create_server((_host("https://nowhere.invalid/"), 0)):
        pass
