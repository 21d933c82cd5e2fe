"""The parts of the benchmarks: runs, tables and the papers' figures."""
