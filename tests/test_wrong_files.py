"""A file that is given to the wrong command is told the right one, and is not taken apart key by key."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollmux.errors import InvalidSpec
from rollmux.protocol.cluster_file import read_cluster_file
from rollmux.protocol.job_file import read_job_file
from rollmux.trainer.job_file import read_job_file as read_training

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
READERS: dict[str, Callable[[Path], Any]] = {
    "rollmux submit": read_job_file,
    "rollmux train": read_training,
    "--cluster": read_cluster_file,
}
FILES = {
    "rollmux submit": ("job.yaml", "four_lines/one.yaml", "slime/job.yaml", "spanning/job.yaml"),
    "rollmux train": (
        "train/arithmetic.yaml",
        "train/guessing.yaml",
        "train/questions.yaml",
        "train/smollm2.yaml",
        "spanning/train.yaml",
    ),
    "--cluster": ("cluster.yaml", "cluster-slices.yaml", "attach/cluster.yaml", "slime/cluster.yaml"),
}


@pytest.mark.parametrize("wanted", READERS)
@pytest.mark.parametrize(("meant", "file"), [(meant, file) for meant, files in FILES.items() for file in files])
def test_each_example_is_read_by_its_own_command_and_the_others_name_it(wanted: str, meant: str, file: str) -> None:
    if wanted == meant:
        READERS[wanted](EXAMPLES / file)
        return
    with pytest.raises(InvalidSpec) as refused:
        READERS[wanted](EXAMPLES / file)
    (problem,) = refused.value.problems
    assert str(problem) == f"content = 'a file for `{meant}`': must be one for `{wanted}`; give it to `{meant}`"
