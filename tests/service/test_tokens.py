"""The file of tokens: changed by several at once, damaged, on a full disk."""

import logging
import os
import re
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from rollmux.cli import app
from rollmux.cli.remote import CallRefused, Remote, Unknown, remote
from rollmux.service import serve
from rollmux.service.tokens import Caller, Role, TokenExists, Tokens, TokensUnreadable, write_private
from tests.forking import forks

AT_ONCE = 4
NOBODY = 65534


def tokens(folder: Path) -> Tokens:
    return Tokens(folder, lambda: 0.0)


def _create(folder: Path, name: str, start: Barrier) -> None:
    known = tokens(folder)
    start.wait(30.0)
    known.create(name, Role.TENANT, name)


def test_tokens_that_are_made_at_once_are_all_there(tmp_path: Path) -> None:
    tokens(tmp_path)
    context = forks()
    start = context.Barrier(AT_ONCE)
    makers = [context.Process(target=_create, args=(tmp_path, f"p{i}", start)) for i in range(AT_ONCE)]
    for each in makers:
        each.start()
    for each in makers:
        each.join(60.0)
        assert each.exitcode == 0
    assert sorted(str(each["name"]) for each in tokens(tmp_path).names()) == [f"p{i}" for i in range(AT_ONCE)]


def test_no_more_tokens_of_jobs_are_remembered_than_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmux.service.tokens.MOST_REMEMBERED", 3)
    known = tokens(tmp_path)
    for name in [f"job-{number}" for number in range(8)] * 2:
        assert known.caller(known.of_job(name, "ann")) == Caller(Role.JOB, f"job {name}", "ann", name)
        assert len(known._jobs) <= 3


@pytest.mark.parametrize("content", ["{", "[]", '{"a": 1}', '{"a": {"name": "b"}}', "\0"])
def test_where_the_file_is_damaged_what_was_known_holds_and_nothing_is_changed(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    running = tokens(tmp_path)
    token = running.create("ann", Role.TENANT, "ann")
    good = running.path.read_text()
    assert running.caller(token)
    running.path.write_text(content)
    os.utime(running.path, ns=(1, 1))
    with caplog.at_level(logging.ERROR, "rollmux"):
        for _ in range(3):
            assert running.caller(token)
            assert running.caller("another") is None
    assert len(caplog.records) == 1
    assert str(running.path) in caplog.text
    for change in (lambda: running.create("bob", Role.ADMIN), lambda: running.revoke("ann"), running.names):
        with pytest.raises(TokensUnreadable, match=r"tokens\.json is damaged"):
            change()
    with pytest.raises(TokensUnreadable):
        tokens(tmp_path).caller(token)
    for call in (["list"], ["create", "bob"], ["revoke", "ann"]):
        done = CliRunner().invoke(app, ["token", *call, "--folder", str(tmp_path)])
        assert done.exit_code == 2, done.output
        assert "is damaged" in " ".join(done.output.replace("│", "").split())
    running.path.write_text(good)
    assert running.revoke("ann")
    assert running.caller(token) is None
    assert running.names() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_makes_in_the_folder_of_a_controller_can_be_read_by_its_user(tmp_path: Path) -> None:
    """As root, `rollmux token` took the file of tokens away from a service with a user of its own."""
    os.chown(tmp_path, NOBODY, NOBODY)
    done = CliRunner().invoke(app, ["token", "create", "ann", "--folder", str(tmp_path)])
    assert done.exit_code == 0, done.output
    owners = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in tmp_path.iterdir()}
    assert owners == {"secret": (NOBODY, NOBODY), "tokens.json": (NOBODY, NOBODY)}


def test_where_the_file_is_not_to_be_read_what_was_known_holds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running = tokens(tmp_path)
    token = running.create("ann", Role.TENANT, "ann")
    assert running.caller(token)
    running.path.unlink()
    running.path.mkdir()  # which nobody can read as a file, not even root
    for _ in range(3):
        assert running.caller(token)
        assert running.caller("another") is None
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    with pytest.raises(TokensUnreadable, match=r"tokens\.json can't be read \(Is a directory\): give it to the user"):
        running.names()


def test_a_controller_does_not_start_with_damaged_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text("{")
    done = CliRunner().invoke(app, ["serve", "--folder", str(tmp_path), "--port", "0"])
    assert done.exit_code == 2, done.output
    assert "is damaged" in " ".join(done.output.replace("│", "").split())


def test_a_disk_that_is_full_leaves_what_was_there_and_the_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_private(tmp_path / "secret", b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/secret'"):
        write_private(tmp_path / "secret", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("secret", b"old")]


def test_a_start_that_broke_off_while_it_made_its_token_leaves_nothing_in_the_way_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    for _ in range(2):  # at first, and where the token was revoked
        with monkeypatch.context() as patch:
            patch.setattr(serve, "write_private", full)
            with pytest.raises(OSError, match="No space"):
                serve.admin_token(tmp_path, tokens(tmp_path))
        made = serve.admin_token(tmp_path, tokens(tmp_path))
        assert made == serve.admin_token(tmp_path, tokens(tmp_path))
        assert tokens(tmp_path).caller(made) == Caller(Role.ADMIN, "admin")
        tokens(tmp_path).revoke("admin")


def test_a_start_makes_the_token_of_this_machine_s_commands_anew_where_it_was_revoked(tmp_path: Path) -> None:
    """Or where the file of tokens was removed, as is advised if that is damaged."""
    made = [serve.admin_token(tmp_path, tokens(tmp_path))]
    assert tokens(tmp_path).revoke("admin")
    made.append(serve.admin_token(tmp_path, tokens(tmp_path)))
    (tmp_path / "tokens.json").unlink()
    made.append(serve.admin_token(tmp_path, tokens(tmp_path)))
    assert [tokens(tmp_path).caller(each) for each in made] == [None, None, Caller(Role.ADMIN, "admin")]
    assert (tmp_path / "admin.token").read_text() == made[2]


def test_nobody_s_token_is_replaced_that_has_the_name_of_one_that_was_revoked(tmp_path: Path) -> None:
    serve.admin_token(tmp_path, tokens(tmp_path))
    tokens(tmp_path).revoke("admin")
    mine = tokens(tmp_path).create("admin", Role.ADMIN)
    serve.admin_token(tmp_path, tokens(tmp_path))
    assert tokens(tmp_path).caller(mine) == Caller(Role.ADMIN, "admin")


def test_a_tenant_that_is_called_admin_keeps_its_token(tmp_path: Path) -> None:
    token = tokens(tmp_path).create("admin", Role.TENANT, "research")
    with pytest.raises(TokenExists, match="revoke it first"):
        serve.admin_token(tmp_path, tokens(tmp_path))
    assert tokens(tmp_path).caller(token) is not None


@pytest.mark.parametrize(
    ("url", "given", "sent"),
    [
        ("", "", "of the folder"),
        ("http://here:8421/", "", "of the folder"),
        ("http://elsewhere:8421", "", ""),
        ("http://elsewhere:8421", "mine", "mine"),
    ],
)
def test_a_folder_s_token_goes_to_its_own_controller_alone(tmp_path: Path, url: str, given: str, sent: str) -> None:
    (tmp_path / "url").write_text("http://here:8421\n")
    (tmp_path / "admin.token").write_text("of the folder\n")
    assert remote(url, given, tmp_path).token == sent


@pytest.mark.parametrize("folder", ["named", "."])
def test_a_folder_that_is_named_comes_before_the_controller_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """`rollmux cancel JOB --folder test` ended the job of this name where `eval "$(rollmux env)"` had led before."""
    monkeypatch.chdir(tmp_path)
    place = Path(folder)
    place.mkdir(exist_ok=True)
    monkeypatch.setenv("ROLLMUX_URL", "http://elsewhere:8421")
    monkeypatch.setenv("ROLLMUX_TOKEN", "elsewhere's")
    given = "http://elsewhere:8421", "elsewhere's"
    with pytest.raises(Unknown, match="where is the controller"):
        remote(*given, place)
    (place / "url").write_text("http://here:8421\n")
    (place / "admin.token").write_text("of the folder\n")
    there = remote(*given, place)
    assert (there.url, there.token) == ("http://here:8421", "of the folder")
    there = remote("http://third:8421", "mine", place)
    assert (there.url, there.token) == ("http://third:8421", "mine")
    monkeypatch.setenv("ROLLMUX_FOLDER", folder)
    there = remote(*given, place)
    assert (there.url, there.token) == given


@pytest.mark.parametrize(("token", "told"), [("", True), ("wrong", False)])
def test_who_has_sent_no_token_is_told_where_a_folder_s_own_goes(token: str, told: bool) -> None:
    refused = httpx.MockTransport(
        lambda _: httpx.Response(401, json={"error": "who calls is not known", "problems": []})
    )
    with httpx.Client(transport=refused) as client, pytest.raises(CallRefused, match="not known") as raised:
        Remote("http://here", token, client).get(dict, "/v1/cluster")
    assert ("none was sent: give --token" in str(raised.value)) is told


@pytest.mark.parametrize("token", ["ünicode", "two\nlines"])
def test_what_can_be_no_token_is_told_so(token: str) -> None:
    done = CliRunner().invoke(app, ["status", "--url", "http://127.0.0.1:9", "--token", token])
    assert done.exit_code == 2, done.output
    assert "the token is none" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["caf\udce9"], "must be 1 to 200 printable characters"),
        (["bob", "--tenant", "a\nb"], "must be 1 to 200 printable characters"),
        ([""], "must be 1 to 200 printable characters"),
        (["bob", "--days", "nan"], "must be above 0, and at most 36500"),
        (["bob", "--days", "1e300"], "must be above 0, and at most 36500"),
        (["bob", "--days", "-1"], "must be above 0, and at most 36500"),
        (["bob", "--days", "0"], "must be above 0, and at most 36500"),
        (["bob", "--admin", "--tenant", "ops"], "give one of the two"),
    ],
)
def test_a_token_that_could_not_be_kept_or_told_of_is_not_made(tmp_path: Path, words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["token", "create", *words, "--folder", str(tmp_path)])
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.output.replace("│", "").split())
    assert tokens(tmp_path).names() == []


def test_a_token_may_be_good_for_long(tmp_path: Path) -> None:
    for words in (["create", "bob", "--days", "36500"], ["list"]):
        done = CliRunner().invoke(app, ["token", *words, "--folder", str(tmp_path)])
        assert done.exit_code == 0, done.output
    assert "bob: tenant of bob, until" in done.output


def test_no_tenant_is_called_as_an_admin_whose_jobs_it_would_see(tmp_path: Path) -> None:
    known = tokens(tmp_path)
    known.create("ops", Role.ADMIN)
    known.create("sam", Role.TENANT, "research")
    with pytest.raises(TokenExists, match="'ops' is or was an admin"):
        known.create("ann", Role.TENANT, "ops")
    with pytest.raises(TokenExists, match="there are tokens of the tenant 'research'"):
        known.create("research", Role.ADMIN)


def test_nor_as_one_that_was_an_admin_whose_jobs_may_be_there_yet(tmp_path: Path) -> None:
    known = tokens(tmp_path)
    old = known.create("ops", Role.ADMIN)
    for _ in range(2):
        assert known.revoke("ops")
        assert not known.revoke("ops")
        assert (known.caller(old), known.names()) == (None, [])
        for name in ("ops", "ann"):
            with pytest.raises(TokenExists, match="'ops' is or was an admin"):
                tokens(tmp_path).create(name, Role.TENANT, "ops")
        old = known.create("ops", Role.ADMIN)
        assert known.caller(old) == Caller(Role.ADMIN, "ops")


def test_an_admin_whose_token_is_changed_each_day_takes_no_more_room_for_it(tmp_path: Path) -> None:
    known, sizes = tokens(tmp_path), set[int]()
    for _ in range(3):
        known.create("ops", Role.ADMIN)
        known.revoke("ops")
        sizes.add(known.path.stat().st_size)
    assert len(sizes) == 1


def test_programs_that_are_the_first_at_once_have_one_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for folder in (tmp_path / str(number) for number in range(20)):
            folder.mkdir()
            made = list(threads.map(tokens, [folder] * AT_ONCE))
            later = tokens(folder)
            assert all(later.caller(each.of_job("a", "ann")) for each in made)


def test_every_token_that_others_make_or_revoke_is_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rollmux.audit")
    running, other = tokens(tmp_path), tokens(tmp_path)
    running.names()
    for name in ("ann", "eve"):
        token = other.create(name, Role.ADMIN)
        assert running.caller(token)
        other.revoke(name)
        assert running.caller(token) is None
    token = other.create("bob", Role.ADMIN)
    assert running.caller(token)
    running.path.unlink()
    assert running.caller(token) is None
    noted = [(vars(record)["fields"]["token"], vars(record)["fields"]["change"]) for record in caplog.records]
    assert noted == [(name, change) for name in ("ann", "eve", "bob") for change in ("made", "revoked")]


@pytest.mark.parametrize("words", [["token", "create", "bob"], ["serve", "--port", "0"]])
def test_a_folder_that_is_a_file_is_told_by_name(tmp_path: Path, words: list[str]) -> None:
    (place := tmp_path / "f").touch()
    done = CliRunner().invoke(app, [*words, "--folder", str(place)], env={"COLUMNS": "1000"})
    assert done.exit_code == 2, done.output
    assert re.search(rf"Invalid value: {place}(/secret\S*: Not a directory|: File exists)", done.output)


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this machine's controller, of which nothing is said otherwise."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ROLLMUX_FOLDER", raising=False)
    (folder := tmp_path / ".rollmux").mkdir(0o700)
    return folder


ELSEWHERE = "https://rollmux.example.org"


@pytest.mark.parametrize("here", ["", "http://127.0.0.1:8421"])
@pytest.mark.parametrize("words", [["create", "bob"], ["list"], ["revoke", "bob"]])
def test_no_token_is_made_here_for_a_controller_that_is_elsewhere(
    at_home: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], here: str
) -> None:
    """It would be good for nothing there, and nobody would know why."""
    if here:
        (at_home / "url").write_text(here)
    tokens(at_home).create("bob" if words == ["revoke", "bob"] else "ann", Role.TENANT, "red")
    before = (at_home / "tokens.json").read_bytes()
    monkeypatch.setenv("ROLLMUX_URL", ELSEWHERE)
    done = CliRunner().invoke(app, ["token", *words], env={"COLUMNS": "1000"})
    assert done.exit_code == 2, done.output
    assert f"{ELSEWHERE}, which ROLLMUX_URL names, is not the controller of {at_home}" in done.output
    assert "run this on its machine with --folder, or say --folder for this one" in done.output
    assert (at_home / "tokens.json").read_bytes() == before
    assert CliRunner().invoke(app, ["token", *words, "--folder", str(at_home)]).exit_code == 0


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:8421", "http://127.0.0.1:8421/"])
def test_tokens_of_this_machine_s_controller_want_no_folder(
    at_home: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    (at_home / "url").write_text("http://127.0.0.1:8421\n")
    monkeypatch.setenv("ROLLMUX_URL", url)
    made = CliRunner().invoke(app, ["token", "create", "bob"])
    assert made.exit_code == 0, made.output
    assert tokens(at_home).caller(made.output.strip())


def test_tokens_that_have_run_out_leave_the_file_when_it_is_next_written(tmp_path: Path) -> None:
    now = 0.0
    known = Tokens(tmp_path, lambda: now)
    lasting = known.create("ci", Role.TENANT, "red")
    sizes = set[int]()
    for _ in range(3):
        short = known.create("night", Role.TENANT, "red", lasts_s=10.0)
        assert known.caller(short)
        sizes.add(known.path.stat().st_size)
        now += 10.0
        assert known.caller(short) is None
    assert len(sizes) == 1
    assert [known.revoke("night") for _ in range(2)] == [True, False]  # on the list it was, until now
    assert [each["name"] for each in Tokens(tmp_path, lambda: now).names()] == ["ci"]
    assert known.caller(lasting)


def test_of_an_admin_whose_token_has_run_out_the_name_is_kept(tmp_path: Path) -> None:
    """His jobs may be there yet."""
    now = 0.0
    known = Tokens(tmp_path, lambda: now)
    known.create("ops", Role.ADMIN, lasts_s=10.0)
    now = 10.0
    known.create("ci", Role.TENANT, "red")
    assert [each["name"] for each in known.names()] == ["ci"]
    with pytest.raises(TokenExists, match="'ops' is or was an admin"):
        known.create("ann", Role.TENANT, "ops")
    again = known.create("ops", Role.ADMIN)
    assert known.caller(again) == Caller(Role.ADMIN, "ops")


def test_a_token_that_has_run_out_is_not_noted_as_one_that_somebody_has_revoked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rollmux.audit")
    now = 0.0
    running, other = Tokens(tmp_path, lambda: now), Tokens(tmp_path, lambda: now)
    token = other.create("night", Role.TENANT, "red", lasts_s=10.0)
    assert running.names()
    now = 10.0
    other.create("ci", Role.TENANT, "red")
    assert running.caller(token) is None
    noted = [(vars(record)["fields"]["token"], vars(record)["fields"]["change"]) for record in caplog.records]
    assert noted == [("ci", "made"), ("night", "ran out")]
