"""The journal on a server: no two write it, and no fault of the connection or the server loses or doubles anything."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from itertools import count
from random import Random

import psycopg
import pytest

from rollmux.mux import events as ev
from rollmux.service.journal import (
    Batch,
    Image,
    JournalAway,
    JournalDamaged,
    JournalTaken,
    Owned,
    Record,
    postgres,
    session,
)
from rollmux.service.journal.address import address
from rollmux.service.journal.postgres import PostgresJournal
from tests.ports import free_port
from tests.service import postgres_server
from tests.service.journals import batch, record
from tests.service.postgres_server import Cable, Server, running
from tests.waiting import until

OWNED = Owned("A", "team", {"name": "A"})
SOON_S = 20.0
# Of a role: longer than a busy machine takes to a session's first statement, which lifts it.
TIMEOUT_MS = 400


@pytest.fixture
def url(server: Server) -> str:
    return server.url()


@pytest.fixture
def cable(server: Server) -> Iterator[Cable]:
    with closing(Cable(server)) as found:
        yield found


def durable(url: str) -> list[Record]:
    with closing(PostgresJournal(url, reads_only=True)) as journal:
        return list(journal.records())


def wait_for_blocked(server: Server) -> None:
    """Until somebody waits for a lock."""
    until(lambda: server.admin("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"), SOON_S)


# -- who writes ------------------------------------------------------------------------------------------------------


def test_a_second_controller_is_told_who_writes_and_the_first_goes_on(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "LOCK_WAIT_S", 0.3)
    with closing(PostgresJournal(url)) as first:
        with pytest.raises(JournalTaken, match=r"another controller writes it \(.+, process \d+\)"):
            PostgresJournal(url)
        first.append(batch(1, 2))
    with closing(PostgresJournal(url)) as next_one:
        next_one.append(batch(3, 3))
    assert durable(url) == [record(seq) for seq in (1, 2, 3)]


def test_clusters_in_one_database_know_nothing_of_each_other(server: Server) -> None:
    one, other = server.url(), server.url()
    with closing(PostgresJournal(one)) as a, closing(PostgresJournal(other)) as b:
        a.append(Batch((record(1),), (OWNED,)))
        b.append(batch(1, 3))
        assert list(b.owned()) == []
    assert [len(durable(one)), len(durable(other))] == [1, 3]


@pytest.mark.parametrize("schema", ["default", "primary", "user"])
def test_a_schema_may_have_a_name_that_sql_keeps_for_itself(server: Server, schema: str) -> None:
    for seq in (1, 2):
        with closing(PostgresJournal(server.url(schema))) as journal:
            journal.append(batch(seq, seq))
    assert len(durable(server.url(schema))) == 2


def test_what_reads_sees_one_state_beside_the_writer_and_can_not_write(url: str) -> None:
    with pytest.raises(JournalAway, match="there is no journal"):
        PostgresJournal(url, reads_only=True)
    with closing(PostgresJournal(url)) as writer:
        writer.append(batch(1, 3))
        with closing(PostgresJournal(url, reads_only=True)) as reader:
            assert len(list(reader.records())) == 3
            writer.append(batch(4, 9))
            assert len(list(reader.records())) == 3
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                reader.append(batch(4, 4))
        writer.append(batch(10, 10))
    assert len(durable(url)) == 10


WRITES: dict[str, Callable[[PostgresJournal], object]] = {
    "append": lambda journal: journal.append(Batch((record(3),), (OWNED,), ("B",))),
    "keep": lambda journal: journal.keep(Image(2, 1.0, {})),
    "begin": lambda journal: journal.begin({"cluster": 1}),
}


@pytest.mark.parametrize("later", ["generation = generation + 1, token = 'another'", "token = 'another'"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_with_another_writer_there_nothing_is_written_any_more(
    server: Server, url: str, write: Callable[[PostgresJournal], object], later: str
) -> None:
    """As where the server was replaced by another, or a pool gives the session of another cluster's journal."""
    with closing(PostgresJournal(url)) as journal:
        journal.append(batch(1, 2))
        server.admin(f"UPDATE writer SET {later}", address(url).schema)
        with pytest.raises(JournalTaken, match="another controller writes it"):
            write(journal)
        with pytest.raises(JournalTaken, match="another controller writes it"):
            journal.append(batch(3, 3))
    with closing(PostgresJournal(url)) as journal:
        assert (journal.head(), journal.image(), list(journal.owned())) == ({}, None, [])
        assert list(journal.records()) == [record(1), record(2)]


@pytest.mark.parametrize(
    "setting",
    [
        "bytea_output=escape",
        "client_encoding=LATIN1",
        "client_encoding=SQL_ASCII",
        "extra_float_digits=0",
        f"idle_in_transaction_session_timeout={TIMEOUT_MS}",
        f"idle_session_timeout={TIMEOUT_MS}",
        "search_path=pg_catalog",
        "standard_conforming_strings=off",
        f"transaction_timeout={TIMEOUT_MS}",
    ],
)
def test_what_is_read_is_what_was_written_whatever_settings_the_role_has(
    server: Server, url: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not server.admin(f"SELECT 1 FROM pg_settings WHERE name = '{setting.partition('=')[0]}'"):
        pytest.skip("this server has no such setting")
    rest_s = 1.2 * TIMEOUT_MS / 1000 if "timeout" in setting else 0.0
    monkeypatch.setenv("PGOPTIONS", f"-c {setting}")  # as by ALTER ROLE, or in postgresql.conf
    written = [record(seq, ev.JobCancelled("é 日本 😀")) for seq in (1, 2)]
    with closing(PostgresJournal(url)) as journal:
        for each in written:
            journal.append(Batch((each,), (OWNED,)))
            time.sleep(rest_s)
        journal.keep(Image(2, 1 / 3, {"é": "\\日本"}))
    with closing(PostgresJournal(url, reads_only=True)) as journal:
        assert list(journal.records()) == written
        time.sleep(rest_s)
        assert journal.image() == Image(2, 1 / 3, {"é": "\\日本"})
        assert list(journal.owned()) == [OWNED]


# -- lost connections ------------------------------------------------------------------------------------------------


def test_a_lost_connection_is_made_anew_and_nothing_is_written_twice(
    server: Server, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(PostgresJournal(url)) as journal:
        for seq in range(1, 6):
            journal.append(Batch((record(seq),), (OWNED,)))
            assert server.cut_off() == 1
        with pytest.raises(JournalAway):
            journal.keep(Image(5, 1.0, {"seq": 5}))
        journal.append(batch(6, 6))
        journal.keep(Image(6, 2.0, {"seq": 6}))
        assert journal.image() == Image(6, 2.0, {"seq": 6})
        assert list(journal.owned()) == [OWNED]
    assert durable(url) == [record(seq) for seq in range(1, 7)]
    assert {level for _, level, _ in caplog.record_tuples} == {logging.WARNING}
    assert not any("\n" in text for _, _, text in caplog.record_tuples)


def test_who_lost_the_connection_and_then_the_journal_writes_nothing(server: Server, url: str) -> None:
    with closing(PostgresJournal(url)) as first:
        first.append(batch(1, 2))
        server.cut_off()
        with closing(PostgresJournal(url)) as second:
            second.append(Batch((record(3, ev.Tick()),)))
            for _ in range(2):
                with pytest.raises(JournalTaken, match="another controller writes it"):
                    first.append(batch(3, 3))
        with pytest.raises(JournalTaken):
            first.append(batch(4, 4))  # nor when nobody holds it any more
    assert durable(url) == [record(1), record(2), record(3, ev.Tick())]


@pytest.mark.parametrize("owned", [(), (OWNED,)])
@pytest.mark.parametrize("heard", [True, False], ids=["its reply is lost", "it is lost itself"])
def test_an_append_of_unknown_end_is_written_once(
    server: Server, cable: Cable, heard: bool, owned: tuple[Owned, ...]
) -> None:
    url = server.url_by(cable.port)
    there: list[int] = []

    def pulled() -> bool:
        if not there:
            there.extend(server.admin("SELECT count(*) FROM records", address(url).schema)[0])
            return True
        return False

    with closing(PostgresJournal(url)) as journal:
        journal.append(batch(1, 2))
        setattr(cable, "to_client" if heard else "to_server", pulled)
        journal.append(Batch(batch(3, 5).records, owned))
        assert there == [5 if heard else 2]
        journal.append(batch(6, 6))
        assert tuple(journal.owned()) == owned
        assert list(journal.records()) == [record(seq) for seq in range(1, 7)]


def test_a_connection_that_is_lost_again_and_again_while_it_is_made_anew_gives_nothing_up(
    server: Server, cable: Cable
) -> None:
    """Whichever answer of the server is lost: also that which gives the journal back."""
    for answers in range(1, 25):
        heard = 0

        def pulled(answers: int = answers) -> bool:
            nonlocal heard
            heard += 1
            return heard == answers

        with closing(PostgresJournal(url := server.url_by(cable.port))) as journal:
            journal.append(batch(1, 1))
            server.cut_off()
            cable.to_client = pulled
            journal.append(batch(2, 3))
            cable.to_client = lambda: False
            assert list(journal.records()) == [record(seq) for seq in (1, 2, 3)], url


def test_a_server_that_has_lost_what_was_durable_is_not_written_to(server: Server, url: str) -> None:
    with closing(PostgresJournal(url)) as journal:
        journal.append(batch(1, 5))
        server.admin("DELETE FROM records WHERE seq > 3", address(url).schema)
        server.cut_off()
        for _ in range(2):
            with pytest.raises(JournalDamaged, match="ends with record 3, though 5 was durable"):
                journal.append(batch(6, 6))
    assert len(durable(url)) == 3


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_journal_that_is_gone_is_not_begun_anew_by_its_controller(server: Server, url: str, cut_off: bool) -> None:
    """As on another server that took over and never had it. An empty one would be in the way of a dump put back."""
    schema = address(url).schema
    with closing(PostgresJournal(url)) as journal:
        journal.append(batch(1, 5))
        server.admin(f"DROP SCHEMA {schema} CASCADE")
        if cut_off:
            server.cut_off()
        with pytest.raises((JournalDamaged, psycopg.Error), match=r"its journal is gone|does not exist"):
            journal.append(batch(6, 6))
    assert server.admin(f"SELECT to_regnamespace('{schema}')") == [(None,)]


@pytest.mark.parametrize("ends", [3, 7])
def test_a_journal_that_is_put_back_under_its_controller_is_not_written_to(server: Server, url: str, ends: int) -> None:
    with closing(PostgresJournal(url)) as journal:
        journal.append(batch(1, 5))
        server.admin("UPDATE records SET seq = 7 WHERE seq = 5", address(url).schema)
        server.admin(f"DELETE FROM records WHERE seq > {ends}", address(url).schema)
        for _ in range(2):
            with pytest.raises(JournalDamaged, match=f"ends with record {ends}, though 5 was durable"):
                journal.append(Batch((record(6),), (OWNED,)))
        assert list(journal.owned()) == []


def test_somebody_else_s_record_is_not_taken_for_one_s_own(server: Server, url: str) -> None:
    with closing(PostgresJournal(url)) as journal:
        journal.append(batch(1, 2))
        server.cut_off()
        other = "INSERT INTO records SELECT 3, at, wall_s, event, told, sum FROM records WHERE seq = 2"
        server.admin(other, address(url).schema)
        with pytest.raises(JournalDamaged):
            journal.append(batch(3, 3))


def test_whatever_is_cut_what_was_called_durable_is_there_and_the_history_does_not_fork(
    server: Server, url: str
) -> None:
    """Three controllers want one journal while their sessions are ended at random."""
    over, acknowledged, lives = threading.Event(), list[Record](), list[str]()
    rng = Random(7)

    def controller(name: str) -> None:
        while not over.is_set():
            with suppress(JournalTaken, JournalAway), closing(PostgresJournal(url)) as journal:
                lives.append(name)
                last = max([each.seq for each in journal.records()], default=0)
                for seq in range(last + 1, last + 60):
                    mine = record(seq, ev.JobCancelled(name))
                    journal.append(Batch((mine,)))
                    acknowledged.append(mine)

    with ThreadPoolExecutor(3) as pool:
        running_ones = [pool.submit(controller, name) for name in "abc"]
        cut, until = 0, time.monotonic() + 60
        while (len(acknowledged) < 100 or len(lives) < 4 or cut < 30) and time.monotonic() < until:
            time.sleep(rng.uniform(0.0, 0.15))
            cut += server.cut_off()
        over.set()
        for each in running_ones:
            each.result()
    assert len(lives) > 3
    found = durable(url)
    assert len(found) >= 100
    assert [each.seq for each in found] == list(range(1, len(found) + 1))
    assert sorted(acknowledged, key=lambda each: each.seq) == [each for each in found if each in acknowledged]


# -- servers that fail -----------------------------------------------------------------------------------------------


def test_a_server_that_dies_amid_an_append_and_comes_back_has_it_once() -> None:
    with running() as server, closing(PostgresJournal(url := server.url())) as journal, ThreadPoolExecutor(1) as pool:
        journal.append(batch(1, 2))
        with closing(server.connect(address(url).schema)) as other:
            other.execute("BEGIN; LOCK TABLE records IN SHARE MODE")
            appended = pool.submit(journal.append, batch(3, 5))
            wait_for_blocked(server)
            server.stop()
        server.start()
        appended.result(SOON_S)
        journal.append(batch(6, 6))
        assert list(journal.records()) == [record(seq) for seq in range(1, 7)]


def test_a_server_that_stays_away_is_given_up_and_what_was_durable_is_there() -> None:
    with running() as server:
        url = server.url()
        with closing(PostgresJournal(url, again_s=0.5)) as journal:
            journal.append(batch(1, 2))
            server.stop()
            for _ in range(2):
                with pytest.raises(JournalAway, match=r"lost for 0\.5 s"):
                    journal.append(batch(3, 3))
            with pytest.raises(JournalAway):
                PostgresJournal(url)
            server.start()
            journal.append(batch(3, 3))
        assert durable(url) == [record(seq) for seq in (1, 2, 3)]


def test_a_statement_that_takes_too_long_is_undone_and_raises(server: Server, url: str) -> None:
    with closing(PostgresJournal(url, statement_s=0.3)) as journal:
        journal.append(batch(1, 1))
        with server.connect(address(url).schema) as other:
            other.execute("BEGIN; LOCK TABLE records IN SHARE MODE")
            with pytest.raises(psycopg.errors.QueryCanceled):
                journal.append(Batch((record(2),), (OWNED,)))
        assert list(journal.owned()) == []
        journal.append(batch(2, 2))
    assert durable(url) == [record(1), record(2)]


@contextmanager
def standby_away(server: Server) -> Iterator[None]:
    """Each commit waits for a standby that is not there, as soon as sessions have heard of it."""

    def told(names: str) -> None:
        server.admin(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        server.admin("SELECT pg_reload_conf()")

    told("away")
    try:
        yield
    finally:
        told("")


def waiting_for_a_standby(server: Server, besides: int = 0) -> int:
    """The session that does, once there is one."""
    query = f"SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid != {besides}"
    return int(until(lambda: server.admin(query), SOON_S)[0][0])


def append_until(over: threading.Event, journal: PostgresJournal) -> int:
    """Record by record; how many."""
    for seq in count(1):
        journal.append(batch(seq, seq))
        if over.is_set():
            break
    return seq


def test_a_server_whose_standby_is_away_is_given_up_and_nothing_is_lost_or_doubled(
    server: Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "BEYOND_S", 0.1)
    over = threading.Event()
    with closing(PostgresJournal(url, statement_s=0.4, again_s=0.2)) as journal, ThreadPoolExecutor(1) as pool:
        with standby_away(server):
            appended = pool.submit(append_until, over, journal)
            blocked = waiting_for_a_standby(server)
            over.set()
            with pytest.raises(JournalAway, match="still holds the lock of the lost connection"):
                appended.result(5.0)
        while server.admin(f"SELECT FROM pg_stat_activity WHERE pid = {blocked}"):
            time.sleep(0.02)
        last = len(durable(url))
        journal.append(batch(last, last))
        journal.append(batch(last + 1, last + 1))
    assert durable(url) == [record(seq) for seq in range(1, last + 2)]


@pytest.mark.parametrize("settings", ["", "-c client_min_messages=error"], ids=["", "no warnings"])
def test_a_commit_that_somebody_tells_not_to_wait_for_its_standby_is_not_taken_for_done(
    server: Server, url: str, settings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server calls it done, with a warning."""
    monkeypatch.setenv("PGOPTIONS", settings)
    over = threading.Event()
    with closing(PostgresJournal(url)) as journal, ThreadPoolExecutor(1) as pool:
        with standby_away(server):
            appended = pool.submit(append_until, over, journal)
            blocked = waiting_for_a_standby(server)
            over.set()
            server.admin(f"SELECT pg_cancel_backend({blocked})")
            waiting_for_a_standby(server, besides=blocked)
        last = appended.result(SOON_S)
    assert durable(url) == [record(seq) for seq in range(1, last + 1)]


def test_the_server_too_gives_up_a_controller_that_is_gone_with_an_answer_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would send that for a quarter of an hour, and hold the lock; over a Unix socket nothing can be set of this."""
    monkeypatch.setenv("PGPORT", str(free_port()))
    with (
        running(listen_addresses="127.0.0.1", port=os.environ["PGPORT"]),
        closing(PostgresJournal("postgresql://rollmux@127.0.0.1/postgres")) as journal,
    ):
        assert journal._db.execute("SHOW tcp_user_timeout").fetchone() == ("10000",)


def test_a_server_that_does_not_sync_its_disk_is_refused() -> None:
    with running(fsync="off") as server, pytest.raises(JournalAway, match="fsync off"):
        PostgresJournal(server.url())


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_not_every_name_fits_into_is_refused(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_server, "INITDB", (*postgres_server.INITDB, "-E", encoding, "--no-locale"))
    with running() as server, pytest.raises(JournalAway, match=f"the database is in {encoding}, .* ENCODING 'UTF8'"):
        PostgresJournal(server.url())


@pytest.mark.parametrize("place", ["/postgres?user=rollmux&", "rollmux@/postgres?"], ids=["no host", "a user"])
def test_a_server_of_this_machine_needs_no_host_in_its_url(server: Server, place: str) -> None:
    with closing(PostgresJournal(f"postgresql://{place}host={server.folder}&schema=here")) as journal:
        assert journal.head() == {}


# -- words -----------------------------------------------------------------------------------------------------------


def test_no_message_tells_a_password(
    server: Server, cable: Cable, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "LOCK_WAIT_S", 0.3)
    url = server.url_by(cable.port, "s3cr%65t")
    said = []
    with closing(PostgresJournal(url, again_s=0.3)) as journal:
        assert f"@127.0.0.1:{cable.port}/postgres" in journal.name
        said.append(repr(vars(journal)))
        with pytest.raises(JournalTaken) as refused:
            PostgresJournal(url)
        cable.close()
        server.cut_off()
        with pytest.raises(JournalAway) as away:
            journal.append(batch(1, 1))
        said += [str(refused.value), str(away.value), caplog.text]
    for wrong in (
        "postgresql://me:s3cret%ZZ@host/db",
        "postgresql://me:s3cret@host/db?nonsense=1",
        "postgresql://me:s3cret@[host/db",
        "postgresql://me:s3cret@host/db?schema=S;DROP",
        "postgresql://me:s3cret@host/db?schema=pg_x",
        "postgresql://me:s3@cr@s3cret@127.0.0.1:1/db",
        "postgresql://me:7/s3cret@127.0.0.1:1/db",
        "postgresql://me@127.0.0.1:1/db?password=s3cret",
    ):
        with pytest.raises(JournalAway) as unread:
            PostgresJournal(wrong)
        said += [str(unread.value), repr(unread.value.__cause__)]
    assert [text for text in said if "s3cret" in text or "s3cr%65t" in text] == []
