"""What runs beside the GPUs: rollout engines, resident state and the node's host memory, weight sync, reward workers.

Each part stands alone and is imported by its own name; none needs a controller. `forks` begins processes for them.
"""
