"""How much each benchmark does: in full, quickly, or just enough to prove that it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of jobs, seconds and rounds; rounds are pairs of what is compared."""

    rounds: int
    e2e_jobs: int
    enqueue_jobs: int
    slow_jobs: int
    producers: int
    batch_jobs: int
    pickups: int
    idle_s: float
    claim_rows: int
    claim_foreign: int
    claim_small: int
    claims: int
    crowd_s: float
    memory_jobs: int
    imports: int
    history_rows: int
    history_runs: int
    purge_rows: int
    purge_alone_s: float


FULL = Sizes(
    rounds=7,
    e2e_jobs=40_000,
    enqueue_jobs=3_000,
    slow_jobs=300,
    producers=64,
    batch_jobs=10_000,
    pickups=300,
    idle_s=20.0,
    claim_rows=1_000_000,
    claim_foreign=100_000,
    claim_small=1_000,
    claims=2_000,
    crowd_s=60.0,
    memory_jobs=20_000,
    imports=10,
    history_rows=5_000_000,
    history_runs=9,
    purge_rows=500_000,
    purge_alone_s=20.0,
)

QUICK = Sizes(
    rounds=3,
    e2e_jobs=10_000,
    enqueue_jobs=1_000,
    slow_jobs=100,
    producers=64,
    batch_jobs=10_000,
    pickups=60,
    idle_s=5.0,
    claim_rows=100_000,
    claim_foreign=10_000,
    claim_small=1_000,
    claims=400,
    crowd_s=5.0,
    memory_jobs=3_000,
    imports=5,
    history_rows=500_000,
    history_runs=5,
    purge_rows=50_000,
    purge_alone_s=5.0,
)

TINY = Sizes(
    rounds=1,
    e2e_jobs=300,
    enqueue_jobs=20,
    slow_jobs=5,
    producers=4,
    batch_jobs=50,
    pickups=3,
    idle_s=0.2,
    claim_rows=500,
    claim_foreign=50,
    claim_small=500,
    claims=5,
    crowd_s=0.5,
    memory_jobs=200,
    imports=1,
    history_rows=2_000,
    history_runs=1,
    purge_rows=500,
    purge_alone_s=0.3,
)
