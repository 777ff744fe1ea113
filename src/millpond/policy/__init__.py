"""Decisions as pure functions: moments, dice and counters come in as numbers, answers go out.

Nothing here reads a clock, rolls dice, logs, waits or touches a store, so one rule serves
every engine, the worker and the tests alike.
"""
