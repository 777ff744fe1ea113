"""The settling desk: ends of attempts go to the store in parcels, one parcel under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from millpond import fault
from millpond.errors import CommitUncertain, StoreBusy, StoreClosed, StoreFull
from millpond.model import AttemptOutcome, Settled, Settlement, State
from millpond.policy.fingerprint import safe_message
from millpond.store.protocol import Ticket
from millpond.worker import journal
from millpond.worker.holdings import Held
from millpond.worker.shared import Parcel, Shared, WorkerFailed

BUSY_PAUSE_MS = 50
FULL_PAUSE_MS = 1_000


class Answered(NamedTuple):
    """A parcel that is settled, and what the store said to each of its jobs."""

    parcel: Parcel
    answers: list[Settled]


class Desk:
    """Gathers settlements while a parcel is under way; nothing is settled twice.

    `due` is told when a settled job falls due again, so that the keeper looks in time.
    """

    def __init__(self, shared: Shared, due: Callable[[int], None]) -> None:
        self._shared = shared
        self._due = due
        self._fresh = Parcel([], [])
        self._again: deque[Parcel] = deque()
        self._under_way: tuple[Ticket[list[Settled]], Parcel] | None = None
        self._rest_until = 0
        self._unrecorded: set[int] = set()

    @property
    def idle(self) -> bool:
        """Whether nothing is waiting or under way."""
        return self._under_way is None and not self._fresh.held and not self._again

    @property
    def rests_until(self) -> int:
        """The monotonic moment before which the store is not asked again, 0 for none."""
        return 0 if self._under_way is not None or self.idle else self._rest_until

    def add(self, held: Held, settlement: Settlement) -> None:
        """Take the end of a job; its lease is still renewed until it is committed."""
        held.settling = True
        self._fresh.held.append(held)
        self._fresh.settlements.append(settlement)

    def submit(self, mono: int) -> bool:
        """Hand the next parcel over, when none is under way; tell whether one was."""
        if self._under_way is not None or mono < self._rest_until:
            return False
        if self._again:
            parcel = self._again.popleft()
        elif self._fresh.held:
            parcel, self._fresh = self._fresh, Parcel([], [])
        else:
            return False
        shared = self._shared
        ticket = shared.launch(lambda: shared.store.settle(shared.worker, parcel.settlements))
        self._under_way = (ticket, parcel)
        return True

    def collect(self, mono: int) -> Answered | None:
        """Take the store's answer to a parcel when it is there; `finish` acts upon it.

        Raises WorkerFailed when the store cannot be used any more.
        """
        if self._under_way is None or not self._under_way[0].done():
            return None
        ticket, parcel = self._under_way
        self._under_way = None
        try:
            answers = ticket.result(0)
        except (StoreBusy, CommitUncertain) as error:
            self._later(parcel, mono + BUSY_PAUSE_MS, error)
        except StoreFull as error:
            self._later(parcel, mono + FULL_PAUSE_MS, error)
        except StoreClosed as error:
            raise WorkerFailed(
                f"{len(parcel.held)} ends of jobs are not recorded: {error}"
            ) from error
        except Exception as error:  # noqa: BLE001  one job's oddity must not cost the others theirs
            self._apart(parcel, error)
        else:
            fault.point("settled")
            return Answered(parcel, answers)
        return None

    def finish(self, answered: Answered) -> None:
        """Let go of what is settled, count and log it."""
        parcel, answers = answered
        shared = self._shared
        tally = shared.holdings.tally
        finished = 0
        for settlement, answer in zip(parcel.settlements, answers, strict=True):
            if answer.state is State.COMPLETED and answer.held:
                finished += 1
                continue
            tally.count(settlement.outcome, answer)
            if answer.due_at is not None:
                self._due(answer.due_at)
        tally.finished += finished
        shared.marks.leave_all(held.mark for held in parcel.held if held.mark >= 0)
        shared.holdings.remove_all(parcel.held)
        plain = finished == len(answers)
        journal.settled(parcel.held, parcel.settlements, answers, plain=plain)

    def _later(self, parcel: Parcel, moment: int, error: Exception) -> None:
        journal.settle_refused(len(parcel.held), error)
        self._again.appendleft(parcel)
        self._rest_until = moment

    def _apart(self, parcel: Parcel, error: Exception) -> None:
        """Try the jobs of a failed parcel one by one; what fails alone is recorded as failed."""
        if len(parcel.held) > 1:
            alone = [
                Parcel([held], [settlement])
                for held, settlement in zip(parcel.held, parcel.settlements, strict=True)
            ]
            self._again.extendleft(reversed(alone))
            return
        (held,) = parcel.held
        if held.number in self._unrecorded:
            raise WorkerFailed(
                f"the end of job {held.claim.token.job_id} cannot be recorded: {error!r}"
            ) from error
        self._unrecorded.add(held.number)
        plain = Settlement(
            held.claim.token,
            AttemptOutcome.FAILED,
            parcel.settlements[0].started_at,
            parcel.settlements[0].ended_at,
            reason="the end of the attempt cannot be recorded",
            message=safe_message(f"{parcel.settlements[0].outcome}: {error!r}"),
        )
        self._again.appendleft(Parcel([held], [plain]))
