"""A name that is misspelt is answered with the names that may be meant, and never with those of others."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rollmux.cli import app
from rollmux.service.tokens import Role
from tests.service.serving import Served, job, served

OF_JOBS = ("status", "explain", "story", "logs", "cancel", "bill")


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A controller on which alice has two jobs, and bob one."""
    with served(tmp_path_factory.mktemp("controller")) as found:
        for name, tenant in (("llama-math", "alice"), ("qwen-code", "alice"), ("llama-secret", "bob")):
            found.post("/v1/jobs", job(name), token_of(found, tenant))
        yield found


def token_of(there: Served, tenant: str) -> str:
    name = f"{tenant}-{len(there.service.tokens.names())}"
    return there.service.tokens.create(name, Role.TENANT, tenant)


def said(there: Served, token: str, *words: str) -> str:
    """What is said of a name that is refused, on one line."""
    result = CliRunner().invoke(app, [*words, "--url", there.service.url, "--token", token], env={"COLUMNS": "200"})
    assert result.exit_code == 2, result.output
    return re.sub(r"[\s│]+", " ", result.stderr)


@pytest.mark.parametrize("command", OF_JOBS)
def test_a_tenant_hears_which_of_its_own_jobs_may_be_meant(there: Served, command: str) -> None:
    heard = said(there, token_of(there, "alice"), command, "lama-math")
    assert "there is no job 'lama-math'; the nearest is llama-math; choose from " in heard
    assert "qwen-code" in heard
    assert "secret" not in heard


@pytest.mark.parametrize("command", OF_JOBS)
def test_of_anothers_job_a_tenant_hears_no_more_than_of_none(there: Served, command: str) -> None:
    token = token_of(there, "carol")
    heard = [said(there, token, command, name) for name in ("llama-math", "never-was")]
    assert heard[0].replace("llama-math", "never-was") == heard[1]
    assert "there is no job 'never-was' " in heard[1]


@pytest.mark.parametrize("command", ["drain", "undrain"])
def test_nodes_are_named_too(there: Served, command: str) -> None:
    heard = said(there, there.admin, command, "rolout-0")
    assert "there is no node 'rolout-0'; the nearest is rollout-0; choose from rollout-0" in heard


def test_of_many_jobs_only_a_near_one_is_named(there: Served, tmp_path: Path) -> None:
    with served(tmp_path) as many:
        for number in range(21):
            many.post("/v1/jobs", job(f"seed-{number}"))
        assert "there is no job 'sed-20'; the nearest is seed-20 " in said(many, many.admin, "status", "sed-20")
        assert "there is no job 'other' " in said(many, many.admin, "status", "other")


def test_a_token_of_a_job_hears_of_no_other_job(there: Served) -> None:
    token = there.service.tokens.of_job("llama-math", "alice")
    heard = said(there, token, "status", "qwen-cod")
    assert "there is no job 'qwen-cod' " in heard
    assert "qwen-code" not in heard


def test_a_journal_and_the_list_of_tokens_name_what_they_know(tmp_path: Path) -> None:
    with served(tmp_path) as there:
        there.post("/v1/jobs", job("llama-math"))
    for words, heard in (
        (
            ("journal", "story", "lama-math"),
            "knows no job 'lama-math'; the nearest is llama-math; choose from llama-math",
        ),
        (("token", "revoke", "admn"), "there is no token 'admn'; the nearest is admin; choose from admin"),
    ):
        result = CliRunner().invoke(app, [*words, "--folder", str(tmp_path)], env={"COLUMNS": "200"})
        assert result.exit_code == 2, result.output
        assert heard in result.stderr


@pytest.mark.parametrize("words", [("list",), ("create", "alice"), ("revoke", "alice")])
def test_a_folder_that_is_not_there_holds_no_tokens(tmp_path: Path, words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["token", *words, "--folder", str(tmp_path / "c")], env={"COLUMNS": "200"})
    assert result.exit_code == 2, result.output
    assert f"there is no folder {tmp_path / 'c'}: `rollmux serve` makes it; or give another --folder" in result.stderr
    assert not (tmp_path / "c").exists()
