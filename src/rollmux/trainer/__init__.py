"""The reference job: synchronous group-relative policy optimisation on our own engine, tail batching and the client.

Begin with `job.py`. The same run goes alone or woven: a controller changes when it runs, never what it trains.
Only `settings`, `job_file` and the modules that they import work without torch.
"""
