"""A worker by hand: claims and settles one step at a time, for tests that need a state."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from millpond import Millpond
from millpond.context import Context, Control
from millpond.model import (
    AttemptOutcome,
    Claim,
    JobId,
    Settlement,
    Token,
    Want,
    WorkerId,
    WorkerInfo,
)


@dataclass
class Hand:
    """Holds what it claimed; also the host of the contexts it makes."""

    pond: Millpond
    worker: str = "hand"
    number: WorkerId = field(init=False)

    def __post_init__(self) -> None:
        tasks = tuple(self.pond.registry)
        info = WorkerInfo("host", 1, None, "0", 1_000, tasks)
        self.number = self.pond.store.register(info).result()

    def claim(self, tasks: tuple[str, ...] = ()) -> Claim:
        """Take exactly one job."""
        served = tasks or tuple(self.pond.registry)
        batch = self.pond.store.claim(self.number, [Want(1)], served, 1).result()
        (claim,) = batch.claims
        return claim

    def settle(self, claim: Claim, outcome: AttemptOutcome, **more: object) -> None:
        """Record how it ended."""
        now = self.pond.clock.now()
        end = Settlement(claim.token, outcome, started_at=now, ended_at=now, **more)  # type: ignore[arg-type]
        (settled,) = self.pond.store.settle(self.number, [end]).result()
        assert settled.held

    def complete(self, result: bytes | None = None) -> JobId:
        """Claim one job and complete it."""
        claim = self.claim()
        self.settle(claim, AttemptOutcome.COMPLETED, result=result)
        return claim.token.job_id

    def fail(self, message: str = "broken") -> JobId:
        """Claim one job and fail it for good."""
        claim = self.claim()
        self.settle(
            claim, AttemptOutcome.FAILED, error_type="ValueError", message=message, reason="failed"
        )
        return claim.token.job_id

    def context(self, claim: Claim, lease_ms: int = 60_000) -> tuple[Context, Control]:
        """Return the context of a claimed job and what steers it."""
        control = Control(None, self.pond.clock.mono() + lease_ms)
        return Context(claim, control, self), control

    def mono(self) -> int:
        """Return the pond's monotonic clock."""
        return self.pond.clock.mono()

    def progress(self, token: Token, value: bytes) -> None:
        """Write it at once."""
        self.pond.store.progress(self.number, [(token, value)]).result()

    def remember(self, token: Token, value: bytes) -> bool:
        """Write it and wait for the commit."""
        return self.pond.store.remember(self.number, token, value).result()


def steady(value: object) -> str:
    """Name a parametrised case without its address, which differs between test processes."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
