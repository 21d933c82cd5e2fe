"""The figures of RollPacker (arXiv 2509.21009, NSDI'26) that are shown beside ours, each with its place in the paper.

They are those of the paper's own implementation on H800 GPUs, with 128 prompts x 8 responses a step. If the paper has
only a drawing, they are read off it.
"""

SETUPS = ("7B/8k", "14B/16k")

# How much faster than veRL, as the parts are added one after the other (ablation; 32B from its text and abstract).
SPEEDUPS: dict[str, dict[str, float]] = {
    "7B/8k": {"tail batching": 1.3, "and rewards": 2.01, "and planner": 2.01, "rollpacker": 2.03},
    "14B/16k": {"tail batching": 1.48, "and rewards": 1.99, "and planner": 2.02, "rollpacker": 2.22},
    "32B/32k": {"tail batching": 2.21, "rollpacker": 2.56},
}
# Rewards beside the rollout alone, without tail batching.
REWARDS_ALONE: dict[str, float] = {"7B/8k": 1.48, "14B/16k": 1.35}

# Mean seconds of a rollout by over-provisioning of responses and of prompts (table of eta sensitivity).
ETA_ROLLOUT_S: dict[str, dict[tuple[float, float], float]] = {  # (prompts, responses)
    "7B/8k": {
        (1.0, 1.0): 82, (1.0, 1.125): 77, (1.0, 1.25): 71, (1.0, 1.5): 54,
        (1.125, 1.0): 77, (1.25, 1.0): 72, (1.5, 1.0): 60, (1.25, 1.25): 47,
    },
    "14B/16k": {
        (1.0, 1.0): 277, (1.0, 1.125): 260, (1.0, 1.25): 232, (1.0, 1.5): 115,
        (1.125, 1.0): 244, (1.25, 1.0): 169, (1.5, 1.0): 143, (1.25, 1.25): 88,
    },
}  # fmt: skip

# Seconds of the parts of a step with everything on (table of the step breakdown), by kind of round.
PARTS = ("sync", "rollout", "reward", "train")
BREAKDOWN_S: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "7B/8k": {"short": (4.9, 74.5, 2.8, 24.4), "long": (5.1, 87.4, 3.9, 32.5)},
    "14B/16k": {"short": (14.9, 68.0, 1.5, 49.7), "long": (15.2, 225.1, 2.2, 59.4)},
}

# Shares of a veRL step of 14B by what scores it, in percent, and five such steps with code, in seconds.
STAGES = ("rollout", "reward", "train")
STAGE_PCT: dict[str, tuple[int, int, int]] = {"math": (72, 5, 23), "code": (66, 13, 21), "judge": (71, 7, 22)}
FIVE_STEPS_S: dict[str, dict[str, float]] = {
    "sync": {"rollout": 1125, "reward": 225, "train": 350},
    "tail batching": {"short rollouts": 351, "long rollout": 255, "reward": 255, "train": 287},
}

# Qwen2.5-14B on 16 GPUs: seconds of a rollout with the adaptive size, and the size, by the cap in thousands of tokens.
SIZES: dict[int, tuple[float, int]] = {
    8: (163.7, 1), 10: (202.1, 1), 12: (240.4, 1), 14: (233.0, 2), 16: (262.8, 2), 18: (295.8, 2), 20: (328.7, 2),
    22: (387.4, 2), 24: (357.1, 4), 26: (378.8, 4), 28: (400.4, 4), 30: (431.8, 4), 32: (463.1, 4),
}  # fmt: skip
UNSWITCHED_S: dict[int, tuple[float, int]] = {14: (280.0, 1), 24: (446.0, 2)}
# Qwen3-8B at a cap of 32k on 8 GPUs: seconds of a rollout and preemptions, by size and kind of round.
QWEN3_8B: dict[tuple[int, str], tuple[float, int]] = {
    (1, "short"): (1029, 5199), (1, "long"): (1172, 2900), (2, "short"): (768, 4102), (2, "long"): (1284, 2601),
}  # fmt: skip

# Generation and rewards of 20 steps of code in seconds, with adaptive limits and with 30 s for every test.
TIMEOUTS_S: dict[str, tuple[float, ...]] = {
    "adaptive": (
        34.7, 32.5, 31.6, 31.8, 83.4, 31.7, 31.3, 31.2, 30.9, 81.1,
        31.9, 31.9, 33.0, 31.7, 80.5, 32.3, 31.0, 30.4, 32.7, 82.3,
    ),
    "fixed": (
        56.5, 56.0, 56.4, 57.5, 81.2, 54.6, 54.9, 56.0, 54.6, 79.8,
        55.8, 56.0, 56.6, 58.8, 78.2, 56.5, 54.8, 57.0, 54.6, 80.9,
    ),
}  # fmt: skip

# Seconds of a step by when half of the GPUs are freed; the setup is unsaid, 7B/8k by its seconds.
TRIGGER_S: dict[str, float] = {"none": 124.2, "20 %": 122.7, "30 %": 118.2, "40 %": 119.8, "adaptive": 115.2}

# Figure 9: seconds of 40 consecutive steps, read off it. Every fifth of RollPacker is the long round.
STEP_TIMES_S: dict[str, dict[str, tuple[float, ...]]] = {
    "7B/8k": {
        "veRL": (
            224.7, 210.1, 348.0, 210.7, 232.1, 188.7, 252.1, 260.8, 192.8, 179.3,
            335.6, 189.7, 181.2, 311.7, 340.0, 184.8, 199.4, 283.0, 192.4, 215.6,
            181.0, 302.6, 179.9, 179.4, 306.3, 221.2, 242.4, 191.0, 329.9, 184.0,
            311.8, 260.6, 191.4, 222.4, 283.6, 306.2, 179.7, 176.7, 175.2, 177.3,
        ),
        "RollPacker": (
            120.7, 108.2, 106.4, 108.2, 137.3, 107.7, 111.0, 107.9, 108.4, 132.6,
            109.6, 102.4, 104.9, 109.4, 135.1, 110.8, 105.7, 109.9, 110.4, 136.0,
            109.5, 106.4, 106.8, 112.6, 125.0, 109.7, 111.9, 109.6, 111.4, 134.2,
            114.3, 115.0, 113.5, 113.2, 134.4, 114.0, 112.8, 114.7, 122.7, 129.9,
        ),
        "RLHFuse": (
            224.8, 135.3, 138.2, 138.3, 130.5, 134.7, 132.8, 134.1, 135.2, 136.9,
            125.9, 130.3, 130.9, 128.3, 125.1, 124.3, 129.8, 141.3, 129.4, 123.1,
            127.8, 127.7, 127.9, 121.2, 120.7, 119.9, 118.9, 128.3, 123.7, 132.2,
            120.8, 129.0, 124.4, 132.5, 117.4, 133.2, 122.6, 131.8, 128.5, 117.6,
        ),
    },
    "14B/16k": {
        "veRL": (
            504.2, 376.2, 391.6, 379.9, 370.5, 386.3, 382.3, 385.1, 379.0, 385.1,
            385.7, 377.5, 375.2, 382.5, 375.6, 379.4, 374.2, 379.8, 372.9, 381.1,
            378.4, 464.0, 370.3, 403.2, 390.1, 370.4, 366.2, 393.3, 362.4, 372.7,
            396.9, 368.1, 367.1, 359.6, 368.7, 380.2, 366.2, 373.6, 365.1, 372.5,
        ),
        "RollPacker": (
            150.5, 135.5, 135.0, 137.0, 299.2, 136.8, 133.2, 137.6, 136.1, 310.2,
            138.4, 134.5, 138.7, 143.4, 317.3, 136.2, 139.5, 137.5, 137.7, 311.9,
            138.1, 138.2, 136.4, 141.9, 303.7, 139.9, 137.0, 137.4, 141.7, 306.3,
            139.8, 136.0, 139.6, 144.1, 293.8, 138.5, 137.2, 137.6, 142.6, 307.8,
        ),
        "RLHFuse": (
            318.4, 292.7, 311.9, 297.4, 270.7, 284.9, 316.0, 323.9, 290.4, 292.4,
            313.6, 294.3, 301.1, 304.3, 304.1, 303.2, 290.4, 303.6, 278.7, 307.2,
            308.2, 299.4, 304.4, 312.3, 301.1, 298.3, 289.1, 291.1, 299.4, 206.7,
            292.1, 289.8, 293.5, 285.4, 196.1, 292.2, 288.2, 297.1, 222.6, 289.3,
        ),
    },
}  # fmt: skip

# What it reports and these tables leave out, and why.
LEFT_OUT = {
    "streaming prompts one at a time against all at once (115.2 to 133.8 s)": (
        "our simulator learns from each prompt as it is scored, and has no counterpart that fetches them once"
    ),
    "accuracy by step": "the simulator trains nothing",
}
