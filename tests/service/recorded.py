"""What each version has written and said, kept for every later one: `python -m tests.service.recorded` adds it.

A journal with an image in the middle, and the calls of a whole job with their answers. Of a version that was released
nothing is ever recorded anew.
"""

import gzip
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import rollmux
from rollmux.cli.remote import Remote
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.transitions import Phase
from rollmux.protocol import views
from rollmux.protocol.messages import Done
from rollmux.service.journal import Batch, Image, SqliteJournal
from rollmux.service.recovery import recover
from tests.service.misbehaving import Fate, misbehaving
from tests.service.serving import PAIR, job, served
from tests.service.world import World

FOLDER = Path(__file__).parent / "recorded"
# Worlds in which nearly every kind of event comes about, and how long they are looked at.
SEEDS, UNTIL_S = (41, 58), 200.0
STEPS = 3


def summary(machine: ClusterMachine) -> dict[str, Any]:
    """What must come of a journal, in words that no later version has a reason to change."""
    state = machine.state
    lanes = [lane for weave in state.weaves.values() for lane in weave.leases.values()]
    return {
        "ended": state.ended,
        "jobs": {
            job_id: [record.state.value, record.attempt, record.progress.rolled, record.progress.synced]
            for job_id, record in state.jobs.items()
        },
        "held": {str(lane.epoch): [lane.seat.job.id, list(lane.held), lane.state is Phase.FENCED] for lane in lanes},
        "nodes": sorted(state.book.nodes),
        "seq": state.ledger.seq,
        "epoch": state.ledger.epoch,
    }


def record_journal(folder: Path, seed: int) -> None:
    """A part of a world's history, as it would be on disk."""
    world = World(seed)
    world.run(UNTIL_S)
    records, owned = tuple(world.journal.records()), tuple(world.journal.owned())
    half = len(records) // 2
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "journal.db"
        journal = SqliteJournal(path)
        journal.begin(world.journal.head())
        journal.append(Batch(records[:half], owned))
        controller, _ = recover(journal, world.begun_in, world.policy(), world.rules)
        image = Image(records[half - 1].seq, records[half - 1].at, controller.image())
        journal.append(Batch(records[half:]))
        journal.keep(image)
        journal.close()
        (folder / f"journal-{seed}.db.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    world.replays_to(world.host.controller)
    told = {"order": world.order.value, "leads to": summary(world.follower)}
    (folder / f"journal-{seed}.json").write_text(json.dumps(told, indent=1) + "\n")


def unpacked(recorded: Path, into: Path) -> SqliteJournal:
    """A copy of a recorded journal, to go on with."""
    with gzip.open(recorded) as packed, (into / "journal.db").open("wb") as file:
        shutil.copyfileobj(packed, file)
    return SqliteJournal(into / "journal.db")


def record_calls(folder: Path) -> None:
    """A whole job by the SDK, and what its owner asks."""
    with (
        tempfile.TemporaryDirectory() as place,
        served(Path(place), PAIR) as there,
        misbehaving(there.service.url, lambda *_: Fate.GOES) as proxy,
    ):
        described = job("a", iterations=STEPS)
        with rollmux.connect(url=proxy.url, token=there.admin, job=described, profile=1) as mux:
            for _ in mux.steps(STEPS):
                with mux.phase("rollout"):
                    mux.progress(1, 2)
                    time.sleep(0.4)
                with mux.phase("train"):
                    time.sleep(0.4)  # a profile is sent in passing
        owner = Remote(proxy.url, there.admin)
        owner.post(views.Quote, "/v1/quote", job("b"))
        owner.post(Done, "/v1/jobs", job("b"))
        owner.get(views.JobView, "/v1/jobs/b")
        owner.get(views.ClusterView, "/v1/cluster")
        for asked in ("explain", "story", "log"):
            owner.get(views.Text, f"/v1/jobs/b/{asked}")
        owner.get(views.Health, "/healthz")
        for post in ("jobs/b/cancel", "nodes/rollout-0/drain", "nodes/rollout-0/undrain"):
            owner.post(Done, f"/v1/{post}")
        calls = [_as_data(*each) for each in proxy.seen]
    (folder / "calls.json").write_text("[\n " + ",\n ".join(map(json.dumps, calls)) + "\n]\n")


def _as_data(line: str, body: bytes, answer: bytes) -> dict[str, Any]:
    said = json.loads(body or b"null")
    if isinstance(said, dict) and "wait_s" in said:
        said["wait_s"] = 0.0  # nobody is to be waited for when it is said again
    assert answer.startswith(b"HTTP/1.1 200 "), (line, answer)
    return {"call": line, "says": said, "hears": json.loads(answer.partition(b"\r\n\r\n")[2])}


def main() -> None:
    folder = FOLDER / rollmux.__version__
    folder.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS:
        record_journal(folder, seed)
    record_calls(folder)


if __name__ == "__main__":
    main()
