"""What a worker did, counted by how the jobs ended."""

from __future__ import annotations

from dataclasses import dataclass

from millpond.model import AttemptOutcome, Settled, State


@dataclass(slots=True)
class Tally:
    """Counts since the worker started; `lost` are attempts whose end was refused or unknown."""

    finished: int = 0
    failed: int = 0
    retried: int = 0
    snoozed: int = 0
    cancelled: int = 0
    handed_back: int = 0
    lost: int = 0

    def count(self, outcome: AttemptOutcome, settled: Settled) -> None:
        """Count one settled attempt by what became of its job."""
        if not settled.held:
            self.lost += 1
            return
        match settled.state:
            case State.COMPLETED:
                self.finished += 1
            case State.FAILED:
                self.failed += 1
            case State.CANCELLED:
                self.cancelled += 1
            case State.SCHEDULED | State.READY | State.RUNNING | None:
                self._count_waiting(outcome)

    def _count_waiting(self, outcome: AttemptOutcome) -> None:
        if outcome is AttemptOutcome.RELEASED:
            self.handed_back += 1
        elif outcome is AttemptOutcome.SNOOZED:
            self.snoozed += 1
        else:
            self.retried += 1


@dataclass(frozen=True, slots=True)
class DrainReport:
    """How the jobs of a run ended; `lost` are attempts whose end was refused or unknown."""

    finished: int = 0
    failed: int = 0
    retried: int = 0
    snoozed: int = 0
    cancelled: int = 0
    handed_back: int = 0
    lost: int = 0

    @classmethod
    def of(cls, tally: Tally) -> DrainReport:
        """Return the counts as they stand."""
        return cls(
            tally.finished,
            tally.failed,
            tally.retried,
            tally.snoozed,
            tally.cancelled,
            tally.handed_back,
            tally.lost,
        )

    @property
    def ended(self) -> int:
        """How many jobs reached a final state."""
        return self.finished + self.failed + self.cancelled

    def __str__(self) -> str:
        parts = [f"{self.finished} finished", f"{self.failed} failed", f"{self.retried} retried"]
        parts += [f"{self.snoozed} snoozed"] if self.snoozed else []
        parts += [f"{self.cancelled} cancelled"] if self.cancelled else []
        return ", ".join([*parts, f"{self.handed_back} handed back", f"{self.lost} lost"])
