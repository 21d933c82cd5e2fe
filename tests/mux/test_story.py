"""The story of a job: what happened, what followed, and which line answers which."""

from dataclasses import replace

from rollmux.mux import ClusterMachine, JobSpec, PhaseSpec, RollmuxPolicy
from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.cluster_machine import Entry
from rollmux.mux.cluster_state import Rules
from rollmux.mux.hardware import PAPER_CLUSTER
from rollmux.mux.story import story
from rollmux.sim.cast import Cast
from tests.mux.world import ROLLOUT, World, job

JOB = JobSpec("a", PhaseSpec(30.0, 1), PhaseSpec(20.0, 1), slo=3.0, iterations=2)


def played() -> ClusterMachine:
    machine = ClusterMachine(PAPER_CLUSTER, RollmuxPolicy())
    cast = Cast(machine)
    for name in "ab":
        cast.submit(0.0, replace(JOB, id=name))
    cast.run()
    return machine


def test_a_story_runs_from_the_submission_to_the_end() -> None:
    lines = story(played().log, "a")
    assert lines[0].endswith("JobSubmitted a")
    assert "Admit a" in "\n".join(lines[:5])
    assert "JobFinished a" in lines[-1]


def test_another_job_appears_only_where_something_followed_for_this_one() -> None:
    lines = story(played().log, "a")
    others = [i for i, line in enumerate(lines) if ": PhaseFinished b" in line]
    assert others
    assert all(lines[i + 1].startswith("    ") and "Grant a " in lines[i + 1] for i in others)
    assert not any(line.startswith("    ") and " b " in line for line in lines)


def test_every_answer_names_the_line_that_it_answers() -> None:
    machine = played()
    by_number = {entry.seq: entry for entry in machine.log}
    lines = story(machine.log, "a")
    starts = [line for line in lines if "PhaseStarted a" in line]
    assert len(starts) == 6  # three phases, twice
    for line in starts:
        cause = int(line.split("after ")[1].split(":")[0])
        granted = [c for c in by_number[cause].commands if type(c).__name__ == "Grant"]
        assert any(f"epoch={c.lease.epoch}" in line for c in granted)  # type: ignore[union-attr]


def test_measures_are_told_in_a_few_digits_and_what_is_not_known_is_left_out() -> None:
    event = ev.JobProfiled("a", 1, rollout_s=0.30077733799998896, train_s=12345.678, sync_s=3.4372e-05)
    (line,) = story([Entry(7, 2.0, event, (), 0)], "a")
    assert line == "7 at 2.000 s: JobProfiled a attempt=1 rollout_s=0.3008 train_s=12346 sync_s=3.437e-05"


def test_a_change_of_the_cluster_is_told_in_a_few_words() -> None:
    cluster = replace(PAPER_CLUSTER, train=replace(PAPER_CLUSTER.train, max_nodes=1))
    queue = cmd.Queue("a", 1, "it is not the first", None)
    entry = Entry(7, 2.0, ev.ClusterChanged(cluster, ("train-1",)), (queue,), 0)
    pools = "rollout: any number of 8xH20 for $14.8/h each, train: 1 of 8xH800 for $42.24/h each"
    assert story([entry], "a")[0] == f"7 at 2.000 s: ClusterChanged {pools}, without train-1"


def test_nobody_has_a_story_before_they_come() -> None:
    assert story(played().log, "nobody") == []


def test_signs_of_life_push_nothing_out_of_the_log() -> None:
    world = World(rules=Rules(log_limit=20))
    world.run(job("A"))
    beat = ev.Heartbeat("A", world.begin("A", ROLLOUT).epoch)
    before = story(world.machine.log, "A")
    for _ in range(20):
        seq = world.machine.state.ledger.seq
        world.tell(ev.Heartbeats((beat,)), 1.0)
        assert world.machine.state.ledger.seq == seq + 1
    assert story(world.machine.log, "A") == before
