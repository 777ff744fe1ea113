"""Benchmarks of millpond: each measures a ratio within one run, on this machine."""
