"""Measurements: `python -m benchmarks` lists the suites."""
