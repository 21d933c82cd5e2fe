"""Hypothesis: profile `ci`, the default, repeats itself; `--hypothesis-profile=dev` searches anew."""

from hypothesis import settings

settings.register_profile("ci", derandomize=True, print_blob=True, deadline=None, database=None)
settings.register_profile("dev", derandomize=False, print_blob=True, deadline=None)
settings.load_profile("ci")
