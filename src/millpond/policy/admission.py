"""Whether work is let in: decided inside the write transaction, on counters nobody else moves.

The answer rests on nothing but the request today: every job is admitted. Limits of queues
and workloads are recorded and counted against, and not enforced yet. The call already stands
where the decision must be taken, between reading the counters and inserting the jobs, so
enforcing them changes this file and no caller's order of steps.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one enqueue, or one batch, asks room for in a workload."""

    jobs: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the workload holds at this moment and may hold; None is no limit of its own."""

    n_jobs: int
    n_bytes: int
    max_jobs: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """Room for this much; the caller moves the counters by it in the same transaction."""

    jobs: int
    bytes: int


def decide(wanted: Wanted, capacity: Capacity) -> Admitted:  # noqa: ARG001  see the module
    """Return what may be inserted: today all of it, whatever the capacity."""
    return Admitted(wanted.jobs, wanted.bytes)
