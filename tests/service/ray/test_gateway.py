"""The model of Ray behaves as the real one does, and a real launcher bears a storm of lost calls to it."""

import asyncio
import json
import pwd
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any
from zipfile import ZipFile

import httpx
import pytest

from rollmux.plain import plain
from rollmux.service.launcher import LaunchFailed
from rollmux.service.ray import http_gateway
from rollmux.service.ray.gateway import RayGateway, RayJob, RayNode, RayTrouble, Unsure, Wish
from rollmux.service.ray.http_gateway import CantCall, HttpGateway, token
from rollmux.service.ray.intents import Intent
from rollmux.service.ray.printed import printed
from rollmux.service.ray.wire import NOTHING
from tests.service.ray.launching import launching, processes_of, shell
from tests.service.ray.model import CALLS, Fault, Faulty, RayModel, played
from tests.service.ray.real import RealRay
from tests.waiting import eventually


async def asked(ray: RayGateway, node: str, name: str) -> None:
    """What launchers rely on."""
    mine = f"test-{name}"
    assert await ray.job(mine) is None
    for call in (ray.stop, ray.said):
        with pytest.raises(RayTrouble):
            await call(mine)
    await ray.submit(Wish(mine, NOTHING, {"A": "1"}, {"rollmux": "first"}))
    await ray.submit(Wish(mine, "sleep 600", {}, {"rollmux": "second"}))
    while not (job := (await ray.jobs())[mine]).over:
        assert dict(job.metadata)["rollmux"] == "first"
        await asyncio.sleep(0.2)
    found = await ray.job(mine)
    assert found is not None
    assert (found.status, found.id) == ("SUCCEEDED", mine)
    await ray.stop(mine)
    assert (await ray.job(mine)) == found
    await ray.submit(Wish(f"{mine}-2", "exec sleep 600", metadata={"rollmux": "attempt"}))
    await ray.stop(f"{mine}-2")
    while not (await ray.jobs())[f"{mine}-2"].over:
        await asyncio.sleep(0.2)
    assert "rollmux" not in await ray.said(mine)
    assert [each.resources[node] for each in await ray.nodes() if node in each.resources] == [1.0]
    assert await ray.tail((await ray.nodes())[0].id, "rollmux/no/such.log", 3) == ""
    await ray.forget(mine)
    assert await ray.job(mine) is None


def test_the_model_does_what_launchers_rely_on() -> None:
    played(asked(RayModel("rollout-0"), "rollout-0", "model"))


@pytest.mark.slow
def test_the_real_one_does_so_too(cluster: RealRay) -> None:
    async def real() -> None:
        ray = HttpGateway(cluster.url)
        await asked(ray, "rollout-0", "real")
        await ray.close()
        away = HttpGateway("http://127.0.0.1:1")
        arguments: dict[str, list[object]] = {
            "submit": [Wish("a", "b")],
            "tail": ["a", "b", 1],
            "jobs": [],
            "nodes": [],
        }
        for name in CALLS:
            with pytest.raises(RayTrouble, match="has not answered"):
                await getattr(away, name)(*arguments.get(name, ["a"]))
        await away.close()

    asyncio.run(real())


@pytest.mark.slow
def test_a_launcher_bears_that_the_first_calls_of_each_kind_go_wrong_in_each_way(
    cluster: RealRay, tmp_path: Path
) -> None:
    async def story() -> None:
        calls = Faulty(HttpGateway(cluster.url), {}, storm=(Fault.LOST, Fault.UNHEARD, Fault.LATE), late_s=5.0)
        async with launching(tmp_path, cluster, gateway=calls) as (launcher, heard):
            await launcher.start(shell(tmp_path, "echo $$ >> starts; sleep 600"))
            await launcher.stop("a", 1, 5.0)
            assert processes_of(launcher) == {}
            await launcher.start(shell(tmp_path, "echo $$ >> starts; exit 4", number=2))
            assert await heard.why("a", 2) == "rank 0 ended with exit code 4; it printed nothing"
            await asyncio.sleep(6.0)
            assert processes_of(launcher) == {}
            assert len(heard.exits) == 1
        assert len((tmp_path / "starts").read_text().split()) == 2

    asyncio.run(story())


@pytest.mark.slow
def test_a_folder_may_be_an_address_that_each_node_unpacks(cluster: RealRay, tmp_path: Path) -> None:
    async def story() -> None:
        with ZipFile(tmp_path / "job.zip", "w") as packed:
            packed.writestr("job/words.txt", "from afar")
        async with launching(tmp_path, cluster) as (launcher, heard):
            attempt = shell(tmp_path, "cat words.txt", processes=2)
            packed_up = replace(attempt.submission, folder=f"file://{tmp_path}/job.zip")
            await launcher.start(replace(attempt, submission=packed_up))
            assert await heard.why("a", 1) == ""
            assert await launcher.log("a", 2) == ["[0] from afar", "[1] from afar"]

    asyncio.run(story())


@pytest.mark.slow
def test_what_ray_cant_unpack_fails_the_attempt_with_its_words(cluster: RealRay, tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path, cluster) as (launcher, _):
            attempt = shell(tmp_path, "true")
            nowhere = replace(attempt.submission, folder="nonsense://nowhere/x.zip")
            with pytest.raises(LaunchFailed, match="nonsense"):
                await launcher.start(replace(attempt, submission=nowhere))

    asyncio.run(story())


def test_the_token_is_where_rays_own_tools_look_for_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(" abc \n")
    assert token({"RAY_AUTH_TOKEN": "xyz"}) == "xyz"
    assert token({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "xyz"}) == ""
    assert token({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}) == "abc"
    assert token({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "none")}) == ""
    with pytest.raises(CantCall, match="there is none in"):
        token({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "none")})
    with pytest.raises(CantCall, match="not ASCII"):
        token({"RAY_AUTH_TOKEN": "xyé"})


def test_kuberays_token_comes_before_ones_own_and_after_what_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".ray").mkdir()
    for name in ("mounted", "named", ".ray/auth_token"):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(http_gateway, "K8S_TOKEN", tmp_path / "mounted")
    monkeypatch.setenv("HOME", str(tmp_path))
    by_pod = {"RAY_AUTH_MODE": "token", "RAY_ENABLE_K8S_TOKEN_AUTH": "True"}
    assert token(by_pod) == "mounted"
    assert token(by_pod | {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "named")}) == "named"
    assert token({"RAY_ENABLE_K8S_TOKEN_AUTH": "false"}) == ".ray/auth_token"


def test_a_user_without_a_home_has_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # a number that the system has no name for
    assert token({}) == ""


def test_a_token_that_is_renewed_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    heard: list[str | None] = []

    def hear(request: httpx.Request) -> httpx.Response:
        heard.append(request.headers.get("authorization"))
        return httpx.Response(200, text="[]")

    async def story() -> None:
        where = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file)}
        ray = HttpGateway("http://ray", lambda: token(where), httpx.MockTransport(hear))
        for content, why in (
            (None, "there is none in"),
            (b" ", "it is empty"),
            (b"\xff", "not ASCII"),
            ("é".encode(), "not ASCII"),
        ):
            if content is not None:
                file.write_bytes(content)
            with pytest.raises(Unsure, match=why):
                await ray.jobs()
        for each in ("of-9", "of-10"):
            file.write_text(each)
            await ray.jobs()
        await HttpGateway("http://ray", transport=httpx.MockTransport(hear)).jobs()

    asyncio.run(story())
    assert heard == ["Bearer of-9", "Bearer of-10", None]


def answering(content: str | bytes) -> HttpGateway:
    """A gateway to what answers all calls with this, and never with an error."""
    return HttpGateway("http://ray", transport=httpx.MockTransport(lambda _: httpx.Response(200, content=content)))


JOB = {"type": "SUBMISSION", "submission_id": "a", "status": "RUNNING", "message": None, "metadata": None}
NODE = {"node_id": "x", "node_ip": "10.0.0.1", "state": "ALIVE", "resources_total": {"CPU": 8, "memory": "3 GiB"}}


def listed(rows: object) -> object:
    return {"result": True, "data": {"result": {"total": 1, "result": rows}}}


def test_what_ray_answers_is_read_and_what_is_of_no_interest_is_passed_over() -> None:
    driver: dict[str, Any] = {
        "type": "DRIVER",
        "submission_id": None,
        "job_id": "01",
        "status": "RUNNING",
        "metadata": {},
    }

    async def story() -> None:
        told = {**JOB, "message": "bad luck", "metadata": {"b": "c"}}
        assert await answering(json.dumps([JOB, driver])).jobs() == {"a": RayJob("a", "RUNNING")}
        assert await answering(json.dumps(told)).job("a") == RayJob("a", "RUNNING", "bad luck", {"b": "c"})
        assert await answering('{"logs": "words"}').said("a") == "words"
        assert await answering(json.dumps(listed([NODE]))).nodes() == [RayNode("x", "10.0.0.1", {"CPU": 8.0})]

    asyncio.run(story())


ANY: list[Any] = [None, 7, "text", [[]], [7], ["text"], [{}], {"logs": 7}, {"logs": None}, {}]
ODD_JOBS = [{**JOB, "status": None}, {**JOB, "submission_id": 7}, {**JOB, "metadata": ["b"]}, {**JOB, "message": {}}]
ODD_ROWS: list[Any] = [None, {}, 7, [7], [{}], [{**NODE, "node_id": None}], [{**NODE, "resources_total": []}]]
UNREADABLE: dict[str, list[Any]] = {
    "jobs": [*ANY, {"a": JOB}, *([job] for job in ODD_JOBS)],
    "job": [*ANY, [], [JOB], *ODD_JOBS, {**JOB, "submission_id": None}, {**JOB, "submission_id": "another"}],
    "said": [*ANY, []],
    "nodes": [*ANY, [], {"data": None}, {"data": {"result": []}}, *map(listed, ODD_ROWS)],
}


@pytest.mark.parametrize("call", UNREADABLE)
def test_an_answer_that_cant_be_read_is_as_good_as_none(call: str) -> None:
    arguments = ["a"] if call in ("job", "said") else []

    async def story() -> None:
        no_utf_8: list[str | bytes] = [b'{"logs": "\xff"}', b'[{"message": "\xff"}]']
        for content in [*map(json.dumps, UNREADABLE[call]), "<html>", "[" * 100_000, *no_utf_8]:
            with pytest.raises(Unsure):
                pytest.fail(f"{content[:99]!r} is {await getattr(answering(content), call)(*arguments)}")

    asyncio.run(story())


@pytest.mark.parametrize(("status", "text"), [(404, "404 page not found"), (404, "<html>"), (302, "")])
def test_what_a_proxy_answers_in_rays_place_says_nothing_of_a_job(status: int, text: str) -> None:
    """Else what runs would count as gone while a proxy does not know where Ray is."""
    ray = HttpGateway("http://ray", transport=httpx.MockTransport(lambda _: httpx.Response(status, text=text)))

    async def story() -> None:
        for call in (ray.job("a"), ray.submit(Wish("a", NOTHING))):
            with pytest.raises(RayTrouble, match=f"has answered {status}"):
                await call

    asyncio.run(story())


@pytest.mark.parametrize(("text", "shown"), [("\x1b[1m" * 500_000, " [1m" * 1024), ("bar é\x1b\r" * 500_000, "bar é ")])
def test_lines_of_megabytes_are_not_looked_at_beyond_what_is_shown(
    text: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = list[str]()

    def look(line: str) -> str:
        looked_at.append(line)
        return plain(line)

    monkeypatch.setattr("rollmux.service.local.attempt_log.plain", look)
    found = asyncio.run(printed(answering(text), Intent("a", 1, "a", {}, ("x",)), "logs", 3))
    assert set(found) == {shown}
    assert sum(map(len, looked_at)) <= 3 * len(shown)


class Slow:
    """What comes to its end once others have had their turn."""

    def __init__(self) -> None:
        self._begun, self._others_had_their_turn = Event(), Event()

    def until_the_end(self) -> None:
        self._begun.set()
        assert self._others_had_their_turn.wait(20)

    async def give_others_their_turn(self) -> None:
        await eventually(self._begun.is_set)
        self._others_had_their_turn.set()


def test_a_log_that_takes_long_to_read_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()

    def look(line: str) -> str:
        slow.until_the_end()
        return plain(line)

    async def story() -> list[str]:
        reads = asyncio.create_task(printed(answering("a\nb"), Intent("a", 1, "a", {}, ("x",)), "logs", 2))
        await slow.give_others_their_turn()
        return await reads

    monkeypatch.setattr("rollmux.service.local.attempt_log.plain", look)
    assert asyncio.run(story()) == ["a", "b"]


def test_a_token_on_a_disk_that_stalls_holds_nobody_up() -> None:
    slow, heard = Slow(), list[str]()

    def stalls() -> str:
        slow.until_the_end()
        return "secret"

    def answers(call: httpx.Request) -> httpx.Response:
        heard.append(call.headers["authorization"])
        return httpx.Response(200, content="[]")

    async def story() -> None:
        calls = asyncio.create_task(HttpGateway("http://ray", stalls, httpx.MockTransport(answers)).jobs())
        await slow.give_others_their_turn()
        await calls

    asyncio.run(story())
    assert heard == ["Bearer secret"]


def test_a_token_on_a_disk_that_stays_silent_fails_calls_in_time_and_holds_up_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on, read = Event(), list[str]()

    def stalls() -> str:
        read.append("begun")
        go_on.wait(5)
        read.append("ended")
        return "secret"

    async def story() -> None:
        ray = HttpGateway("http://ray", stalls, httpx.MockTransport(lambda _: httpx.Response(200, content="[]")))
        for _ in range(3):
            with pytest.raises(Unsure, match="what has its file does not answer"):
                await asyncio.wait_for(ray.jobs(), 3)

    monkeypatch.setattr(http_gateway, "CALL_S", 0.05)
    asyncio.run(story())
    assert read == ["begun"]
    go_on.set()


def test_ray_is_called_itself_where_there_is_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")

    async def story() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n[]")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            ray = HttpGateway(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            assert await ray.jobs() == {}
            await ray.close()

    asyncio.run(story())
