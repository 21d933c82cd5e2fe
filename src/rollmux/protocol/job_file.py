"""Jobs in YAML files (JSON is a part of YAML): two phases, an SLO, and the command that runs them.

Memory is GB. Every problem of a description is reported at once, in the words and the units of the file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rollmux.checks import Checks, one_of
from rollmux.errors import InvalidSpec, Problem
from rollmux.mux.hardware import GB
from rollmux.mux.job import JobSpec, PhaseSpec, Tail
from rollmux.mux.validation import MAX_DURATION_S, job_problems
from rollmux.protocol.plain_yaml import TO_SUBMIT, read_plain

MAX_TEXT = 4096
MAX_ENTRIES = 256
MAX_PROCESSES = 4096
MAX_NAMED = 50  # how many unknown keys of a part are named: looking for the nearest known key takes a while

# The file's keys for memory, and the field that each fills; all other keys have their field's name.
_MEMORY = {"resident_gb": "resident_bytes", "transient_gb": "transient_bytes"}
IN_GB = {field: gb for gb, field in _MEMORY.items()}
PHASE_KEYS = tuple(IN_GB.get(f.name, f.name) for f in fields(PhaseSpec))
TAIL_KEYS = tuple(f.name for f in fields(Tail))
RUN_KEYS = ("command", "env", "folder", "processes", "ranks_per_process")
JOB_KEYS = ("name", *(f.name for f in fields(JobSpec) if f.name != "id"), *RUN_KEYS)
NEEDED = ("name", "rollout", "train", "slo")
# Replaces missing keys of a tail: they are reported as missing, and the check of the rest can go on.
_TAIL = {"requests": 1, "requests_per_node": 1, "bulk_s": 0.0}


@dataclass(frozen=True, slots=True)
class Submission:
    """A job, and what its launcher starts: `command` is empty if the job is started by other means and attaches.

    Each of `processes` starts `ranks_per_process` ranks (torchrun does), or is a rank itself if that is 1.
    """

    job: JobSpec
    command: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    folder: str = ""
    processes: int = 1
    ranks_per_process: int = 1

    @property
    def ranks(self) -> int:
        """How many ranks share the job's leases: a phase is done when all of them are."""
        return self.processes * self.ranks_per_process


def read_job_file(path: str | Path, changes: Sequence[str] = ()) -> Submission:
    """The job of a YAML file, or InvalidSpec with all that is wrong. Its folder is the file's, unless one is given.

    `changes` to the file's content look like `slo=1.5` and `rollout.nodes=2`.
    """
    path = Path(path)
    subject = f"job file {str(path)!r}"
    content = read_plain(path, subject, TO_SUBMIT, changes)
    # A folder that is a URL stays as it is: a launcher unpacks what is there.
    if isinstance(content, dict) and isinstance(folder := content.get("folder", ""), str) and "://" not in folder:
        own = path.parent.resolve()
        if not path.is_file() or own == Path("/dev") or own.is_relative_to("/proc"):
            own = Path.cwd()  # what a pipe brings, or an open file: no command can run where these lie
        content = {**content, "folder": str(own / folder)}
    return read_job(content, subject)


def read_job(content: object, subject: str = "job") -> Submission:
    """The job that the content of a job file describes, or InvalidSpec with all that is wrong."""
    read = _Read()
    submission = read.submission(content)
    if submission is None or read.problems:
        raise InvalidSpec(subject, tuple(read.problems))
    return submission


def job_data(submission: Submission) -> dict[str, Any]:
    """Data from which `read_job` makes this submission; fields with their default are left out."""
    job = submission.job
    data: dict[str, Any] = {"name": job.id} | _said(job, "id", "rollout", "train", "tail")
    data |= {kind: _said(getattr(job, kind)) for kind in ("rollout", "train")}
    if job.tail is not None:
        data["tail"] = _said(job.tail)
    data |= {"command": list(submission.command), "env": dict(submission.env)}
    data |= {"folder": submission.folder, "processes": submission.processes}
    if submission.ranks_per_process != 1:
        data["ranks_per_process"] = submission.ranks_per_process
    return data


def _said(value: Any, *without: str) -> dict[str, Any]:
    data = {}
    for each in fields(value):
        said = getattr(value, each.name)
        if each.name not in without and said != each.default:
            gb = IN_GB.get(each.name)
            data[gb or each.name] = said if gb is None else said / GB
    return data


@dataclass(slots=True)
class _Read:
    """Reads a description, and collects its problems."""

    problems: list[Problem] = field(default_factory=list)

    def submission(self, content: object) -> Submission | None:
        found = self._part("job", content, JOB_KEYS, NEEDED)
        if found is None:
            return None
        values: dict[str, Any] = {
            key: found[key] for key in found if key not in ("name", "rollout", "train", "tail", *RUN_KEYS)
        }
        rollout, train = (self._phase(kind, found) for kind in ("rollout", "train"))
        tail = self._part("job.tail", found.get("tail"), TAIL_KEYS, ("requests", "requests_per_node", "bulk_s"))
        run = self._run(found)
        values["tail"] = None if tail is None else Tail(**{**_TAIL, **tail})
        job = JobSpec(id=found.get("name", "job"), rollout=rollout, train=train, **{"slo": 2.0, **values})
        for problem in job_problems(job):
            *path, name = problem.path.split(".")
            said, remedy = IN_GB.get(name, "name" if name == "id" else name), problem.remedy
            if name == "id" and not isinstance(problem.value, str):
                remedy = "write '7' for a number or a date, behind a file name=\"'7'\""
            self.problems.append(Problem(".".join([*path, said]), problem.value, problem.limit, remedy))
        submission = None if self.problems else Submission(job, **run)
        if submission is not None and job.rollout_spares and submission.ranks > 1:
            limit = "0 where a job has several processes"  # nobody starts one more for each spare node
            self.problems.append(Problem("job.rollout_spares", job.rollout_spares, limit, "leave out one of the two"))
        return submission

    def _part(self, path: str, value: object, known: tuple[str, ...], needed: tuple[str, ...]) -> dict[str, Any] | None:
        """The known keys of a part with their values, or None if there is no such part."""
        if value is None and path == "job.tail":
            return None
        if not isinstance(value, Mapping):
            self.problems.append(Problem(path, value, f"keys and values: {', '.join(known)}", "see examples/job.yaml"))
            return None
        unknown = [key for key in value if key not in known]
        for key in unknown[:MAX_NAMED]:
            name = "a long number" if isinstance(key, int) and key.bit_length() > 256 else str(key)[:80]
            self.problems.append(Problem(f"{path}.{name}", value[key], *one_of(known, name)))
        if len(unknown) > MAX_NAMED:
            self.problems.append(
                Problem(path, len(unknown), "without unknown keys", "only the first of them are named")
            )
        missing = [name for name in needed if name not in value]
        if missing:
            self.problems.append(Problem(path, list(value)[:20], f"with {', '.join(missing)}", "add what is missing"))
        return {key: each for key, each in value.items() if key in known}

    def _phase(self, kind: str, job: Mapping[str, Any]) -> PhaseSpec:
        """A phase of the file. If it is missing, a phase without a problem: that it is missing is reported already."""
        path = f"job.{kind}"
        found = self._part(path, job[kind], PHASE_KEYS, ("duration_s",)) if kind in job else None
        if found is None:
            return PhaseSpec(MAX_DURATION_S, nodes=1)
        checks = Checks(path, self.problems)
        for gb, name in _MEMORY.items():
            if gb in found and checks.number(gb, said := found.pop(gb), 0.0, 1e6, "give GB per node"):
                found[name] = round(said * GB)
        return PhaseSpec(**{"duration_s": MAX_DURATION_S, **found})

    def _run(self, found: dict[str, Any]) -> dict[str, Any]:
        """The values that the launcher needs."""
        checks = Checks("job", self.problems)
        command, env = found.get("command", []), found.get("env", {})
        name = found.get("name")
        if isinstance(name, str) and "/" in name:
            checks.report("name", name, "a name without a slash", "use a dash or a dot")
        if name in (".", ".."):
            checks.report("name", name, "a name that a path can end with", "use letters or digits too")
        if not _texts(command):
            limit = f"a list of up to {MAX_ENTRIES} texts of up to {MAX_TEXT} characters"
            remedy = "write [python, train.py, '7'], numbers in quotes, and what is longer into a file"
            checks.report("command", command, limit, remedy)
        pairs = isinstance(env, Mapping) and _texts(list(env)) and _texts(list(env.values()))
        if not pairs or not all("=" not in name and name for name in env):
            limit = f"up to {MAX_ENTRIES} names with text values of up to {MAX_TEXT} characters"
            remedy = "write {NAME: 'value'}, behind a file env.NAME=\"'value'\", and what is longer into a file"
            checks.report("env", env, limit, remedy)
        folder, processes, each = found.get("folder", ""), found.get("processes", 1), found.get("ranks_per_process", 1)
        if not _texts([folder]):
            checks.report("folder", folder, "the path of a folder", "name the folder to start the command in")
        known = checks.whole("processes", processes, 1, MAX_PROCESSES, "say how many processes share the job's leases")
        most = MAX_PROCESSES // processes if known else MAX_PROCESSES  # of all together
        checks.whole("ranks_per_process", each, 1, most, "say how many ranks each of the processes starts")
        if self.problems:
            return {}
        return {
            "command": tuple(command),
            "env": tuple(sorted(env.items())),
            "folder": folder,
            "processes": processes,
            "ranks_per_process": each,
        }


def _texts(values: object) -> bool:
    """Whether this is a list of texts that can be a process's arguments."""
    if not isinstance(values, list | tuple) or len(values) > MAX_ENTRIES:
        return False
    return all(isinstance(value, str) and len(value) <= MAX_TEXT and _can_be_passed(value) for value in values)


def _can_be_passed(text: str) -> bool:
    """Whether a process can be given this text. JSON can hold what no process can be given: NUL, half characters."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)
