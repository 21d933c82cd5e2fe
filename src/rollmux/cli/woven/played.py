"""A job without a model, for machines without torch: responses of modelled lengths, and updates that take time.

`python -m rollmux.cli.woven.played JOB.yaml OUT`. A step's reward is the share of its responses that ended by
themselves: it depends on the seed alone, as it does with a model.
"""

import json
import sys
import time
from pathlib import Path

from rollmux.client import Mux, connect
from rollmux.packer import DecodeRates
from rollmux.runtime.engine import Ended, FinishReason, GenerationRequest, Limits, LocalEngine, stream
from rollmux.runtime.engine.replay import Lognormal, Played, replay
from rollmux.trainer.job_file import read_job_file
from rollmux.trainer.settings import JobFile

RATES = DecodeRates(1, 1 << 20, base_s=4e-3, per_request_s=2e-5, per_kv_token_s=0.0, prefill_tokens_per_s=1e6)
MEDIAN, SIGMA, END = 24.0, 0.8, 0
TRAIN_TOKEN_S = 8e-5


def main(file: Path, out: Path) -> None:
    job = read_job_file(file)
    out.mkdir()
    engine = replay(Played(Lognormal(MEDIAN, SIGMA), RATES), Limits(room_tokens=1 << 20, max_running=1024))
    with connect() as mux, (out / "metrics.jsonl").open("w", 1, encoding="utf-8") as metrics:
        for step in mux.steps(job.steps):
            ended = _rolled_out(job, engine, mux, step)
            with mux.phase("train"):
                time.sleep(TRAIN_TOKEN_S * sum(len(each.response.tokens) for each in ended))
            with mux.phase("sync"):
                engine.update(step + 1)
                reward = sum(each.reason is FinishReason.STOP for each in ended) / len(ended)
                metrics.write(json.dumps({"step": step, "reward": reward}) + "\n")


def _rolled_out(job: JobFile, engine: LocalEngine, mux: Mux, step: int) -> list[Ended]:
    count = job.batching.prompts * job.batching.responses
    with mux.phase("rollout"):
        for number in range(count):
            seed = (job.seed << 40) + step * count + number
            engine.submit(GenerationRequest(str(number), (1,), job.sampling.max_tokens, seed=seed, stop_tokens=(END,)))
        ended: list[Ended] = []
        for event in stream(engine):
            if isinstance(event, Ended):
                ended.append(event)
                mux.progress(len(ended), count)
    return ended


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
