"""Measurements of RollMux: `python -m benchmarks.<name>`, or `make bench` for all of them."""
