"""The figures of the RollMux paper (arXiv 2512.11306) that are shown beside ours.

They are those of the paper's own implementation on its own machines. `None` is a figure that it does not give.
"""

# Its simulation: 300 jobs over 580 h, SLO from U(1, 2), groups of at most five; cost over its brute-force optimum.
COST_OVER_OPTIMUM = {
    "mixed": {"paper": 1.06, "random": 1.97, "most-idle": 1.66},
    "balanced": {"paper": 1.12, "random": 2.0, "most-idle": 1.75},
}
BRUTE_FORCE_JOBS = 13  # where its brute force gives up

# Its temporal micro-benchmark: two jobs of type A, seconds of a phase and of an iteration, tokens per second.
PHASES_A_S = (131.0, 102.0)
ITERATION_S = {"solo": 257.7, "paper": 261.8}
TOKENS_PER_S = {"solo": 2592.7, "gavel": 2741.7, "colocated": 3216.2, "paper": 4729.8}

# Two jobs that should not share a rollout node, and their slowdowns there.
BAD_PAIR = {"4B-8K-multi": 1.64, "8B-8K-multi": 1.40}

# Its production trace: 200 jobs over 370.2 h.
USD_PER_HOUR = {"solo": 942.0, "colocated": 710.0, "paper": 510.0}
GPUS = {"solo": (132.1, 132.1), "paper": (93.5, 64.3)}  # of the rollout and of the training pool
ADMISSIONS_PCT = {"direct": 60.5, "rollout_scaling": 15.0, "isolated": 24.5}

# What it reports and these tables leave out, and why.
LEFT_OUT = {
    "migration speed-up 1.12 (7B-4K x2), 1.19 (7B-8K x2)": "when four fifths of the responses are done is unsaid",
    "decision latency": "measured by benchmarks.decisions",
    "switch and sync seconds": "measured on its machines; inputs of ours (rollmux.sim.production)",
    "move cost 197 to 419 s": "an input of ours: 300 s wherever jobs move",
}
