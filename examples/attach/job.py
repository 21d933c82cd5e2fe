"""A job that shares two nodes with other copies of itself: run `python job.py NAME` beside `rollmux serve`."""

import sys
import time

import rollmux

if len(sys.argv) != 2:
    sys.exit("give the job a name: python job.py NAME")
phase = {"nodes": 1, "duration_s": 0.3}
job = {"name": sys.argv[1], "slo": 2.5, "iterations": 5, "rollout": phase, "train": phase}

with rollmux.connect(job=job) as mux:

    @mux.phase("rollout")
    def rollout(step: int) -> list[str]:
        time.sleep(0.3)  # generate responses here
        return [f"response {i} of step {step}" for i in range(4)]

    @mux.phase("train")
    def train(responses: list[str]) -> None:
        time.sleep(0.3)  # make an update of them here

    for step in mux.steps(5):
        train(rollout(step))
        print(f"{job['name']}: step {step} is done", flush=True)
