"""What is meant to run on Ray is remembered until it is over, by many threads at once, and not for ever."""

import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from rollmux.service.local.attempt_files import KEPT_ATTEMPTS, KEPT_JOBS
from rollmux.service.ray.intents import Intent, Intents


def test_intents_outlive_their_controller_and_no_id_is_given_twice(tmp_path: Path) -> None:
    first = Intents(tmp_path)
    mine = first.new(("jöb/1", 3), {"r0": "x"}, ("x",))
    first.keep(mine)
    then = Intents(tmp_path)
    assert then.cluster == first.cluster
    assert list(then.open()) == [mine]
    assert then.latest("jöb/1") == mine
    assert then.new(mine.key, {}, ()).id != mine.id
    then.tell(mine, over=False)
    assert list(first.open()) == [replace(mine, told=True)]
    then.tell(mine, over=True)
    assert list(first.open()) == []
    assert Intents(tmp_path / "other").cluster != first.cluster


def test_the_controller_s_folder_is_made_as_its_owner_s_alone(tmp_path: Path) -> None:
    """It holds tokens, and this is the first that makes it."""
    Intents(tmp_path / "not" / "yet")
    assert [stat.S_IMODE((tmp_path / each).stat().st_mode) for each in ("not/yet", "not/yet/ray")] == [0o700, 0o700]


def test_many_jobs_that_start_at_once_are_all_remembered(tmp_path: Path) -> None:
    intents = Intents(tmp_path)
    wanted = [intents.new((f"j{i}", 1), {}, ()) for i in range(100)]

    def begin(intent: Intent) -> None:
        intents.prune()
        intents.keep(intent)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(begin, wanted))
    assert sorted(each.job for each in intents.open()) == sorted(each.job for each in wanted)


def test_only_the_latest_that_are_over_are_kept_and_all_that_are_not(tmp_path: Path) -> None:
    intents = Intents(tmp_path)
    attempts = [intents.new(("a", number), {}, ()) for number in range(1, KEPT_ATTEMPTS + 4)]
    for each in attempts:
        intents.keep(replace(each, over=each.attempt != 2))
    assert intents.prune() == [attempts[0].id, attempts[2].id]
    assert [each.attempt for each in intents.open()] == [2]
    for i in range(KEPT_JOBS):
        intents.keep(replace(intents.new((f"j{i}", 1), {}, ()), over=True))
    assert len(intents.prune()) == KEPT_ATTEMPTS
    assert [each.job for each in intents.open()] == ["a"]


def test_the_latest_attempt_is_none_of_an_older_job_of_that_name(tmp_path: Path) -> None:
    """A new journal beside an old folder counts attempts from 1 again."""
    intents = Intents(tmp_path)
    older = [intents.new(("a", number), {}, ()) for number in (1, 2, 3)]
    for each in older:
        intents.keep(replace(each, over=each.attempt != 2))
    newer = intents.new(("a", 1), {}, ())
    intents.keep(newer)
    assert [each.attempt for each in intents.open()] == [1, 2]
    intents.tell(older[1], over=True)
    intents.keep(newer)
    assert intents.latest("a") == newer


def test_what_is_over_goes_with_its_name(tmp_path: Path) -> None:
    intents = Intents(tmp_path)
    attempts = [intents.new((name, number), {}, ()) for name in "ab" for number in (1, 2)]
    for each in attempts:
        intents.keep(replace(each, over=each.attempt == 1))
    assert intents.forget("a") == [attempts[0].id]
    assert list(intents.open()) == [attempts[1], attempts[3]]
    intents.tell(attempts[1], over=True)
    assert intents.forget("a") == [attempts[1].id]
    assert intents.latest("a") is None
    assert intents.forget("nobody") == []
