"""docs/files.md: its files can be read, and it tells of each key and each call."""

import re
from pathlib import Path

import pytest

import rollmux.client
from rollmux.client.mux import HOOKS, Mux
from rollmux.errors import RollmuxError
from rollmux.protocol.cluster_file import CLUSTER_KEYS, NODE_KEYS, POOL_KEYS, read_cluster_file
from rollmux.protocol.job_file import JOB_KEYS, PHASE_KEYS, TAIL_KEYS, read_job_file
from rollmux.protocol.node_means import MEANS_KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "files.md").read_text(encoding="utf-8")
JOB, CLUSTER, SCRIPT = (
    PAGE.partition(f"## A {what}\n")[2].partition("\n## ")[0] for what in ("job", "cluster", "script")
)


def file_of(section: str) -> str:
    (found,) = re.findall(r"^```yaml\n(.*?)^```$", section, re.M | re.S)
    return str(found)


def test_the_files_shown_can_be_read(tmp_path: Path) -> None:
    for name, section in (("job.yaml", JOB), ("cluster.yaml", CLUSTER)):
        (tmp_path / name).write_text(file_of(section), encoding="utf-8")
    job = read_job_file(tmp_path / "job.yaml")
    assert (job.command, job.folder) == (("python", "train.py"), str(tmp_path))
    assert [pool.max_nodes for pool in read_cluster_file(tmp_path / "cluster.yaml").cluster.pools] == [4, 2]


@pytest.mark.parametrize(
    ("section", "keys"),
    [(JOB, (*JOB_KEYS, *PHASE_KEYS, *TAIL_KEYS)), (CLUSTER, (*CLUSTER_KEYS, *POOL_KEYS, *NODE_KEYS, *MEANS_KEYS))],
    ids=["job", "cluster"],
)
def test_every_key_is_told_of(section: str, keys: tuple[str, ...]) -> None:
    assert [key for key in keys if f"`{key}`" not in section] == []


def test_what_a_script_calls_and_hears_is_there() -> None:
    called = set(re.findall(r"`mux\.(\w+)", SCRIPT))
    assert {"phase", "steps", "progress", "runtime_hook"} <= called
    assert [name for name in called if not hasattr(Mux, name)] == []
    assert [hook for hook in HOOKS if f'"{hook}"' not in SCRIPT] == []
    raised = re.findall(r"^\| `([A-Z]\w+)` \|", SCRIPT, re.M)
    assert len(raised) == 3
    assert all(issubclass(getattr(rollmux.client, name), RollmuxError) for name in raised)
