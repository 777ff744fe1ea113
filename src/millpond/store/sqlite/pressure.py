"""What a queue's mode means for one admission: its gate, its place on the line, when to return.

All of it reads and writes in the transaction that admits, so a job passes the line exactly when
it is stored. In normal mode that is one row read.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from millpond.policy import gcra
from millpond.policy import retry_after as returning
from millpond.policy.causes import Cause
from millpond.policy.effects import Effect, Gate, Verdict, effect_of, restricted, verdict
from millpond.policy.modes import Mode, inline_mode
from millpond.policy.pressure import PressureSettings
from millpond.policy.retry_after import Ghost
from millpond.policy.steering import STALE_MS
from millpond.store.sqlite.named import SQL
from millpond.store.sqlite.names import Context, text


@dataclass(frozen=True, slots=True)
class Pressed:
    """What is set for one workload: its class, its queue's thresholds, whether modes bind it."""

    queue: int
    effect: Effect
    settings: PressureSettings
    bound: bool


def settings_of(tx: Context, workload: int) -> Pressed:
    """Return what is set, kept as long as the names hold."""
    known: dict[int, Pressed] | None = tx.names.derived.get("pressure")
    if known is None or workload not in known:
        known = tx.names.derived["pressure"] = load(tx.execute)
    return known[workload]


def load(execute: Callable[..., Any]) -> dict[int, Pressed]:
    """Read what is set for every workload."""
    rows = execute(SQL["pressure_settings"]).fetchall()
    found: dict[int, Pressed] = {}
    bound = _bound(rows)
    for ident, queue, name, effect, settings in rows:
        kind = effect_of(text(name)) if effect is None else Effect(text(effect))
        set_for = PressureSettings.from_json(None if settings is None else text(settings))
        found[ident] = Pressed(queue, kind, set_for, ident in bound)
    return found


def _bound(rows: list[Any]) -> set[int]:
    queues: dict[int, list[tuple[int, str, str | None]]] = {}
    for ident, queue, name, effect, _ in rows:
        told = None if effect is None else text(effect)
        queues.setdefault(queue, []).append((ident, text(name), told))
    bound: set[int] = set()
    for workloads in queues.values():
        effects = {name: effect_of(name) if told is None else Effect(told)
                   for _, name, told in workloads}  # fmt: skip
        names = restricted(effects, {name for _, name, told in workloads if told is not None})
        bound |= {ident for ident, name, _ in workloads if name in names}
    return bound


def gate(tx: Context, workload: int, utilisation: float, *, disk: int = 0) -> Gate:
    """Return what holds for a workload at this moment, above its own reserve.

    `utilisation` is the larger share of the queue's limits that is held, which decides alone
    with `disk` when nobody has looked for fifteen seconds.
    """
    pressed = settings_of(tx, workload)
    mode, cause, inline = _in_force(tx, pressed, utilisation, disk)
    says = verdict(pressed.effect, mode, cause) if pressed.bound else Verdict.OPEN
    found = Gate(says, mode=mode, cause=cause, inline=inline)
    if says is Verdict.LINE:
        found = _on_line(tx, workload, found)
    if pressed.settings.dry_run and found.verdict is not Verdict.OPEN:
        return replace(found, verdict=Verdict.OPEN, would=found.verdict)
    return found


def _in_force(
    tx: Context, pressed: Pressed, utilisation: float, disk: int
) -> tuple[Mode, Cause, bool]:
    row = tx.execute(SQL["read_mode"], {"queue": pressed.queue}).fetchone()
    if row is None or not 0 <= tx.now - row[0] <= STALE_MS:
        return inline_mode(utilisation, disk, pressed.settings), Cause.STEADY, True
    if row[1] is None:
        return Mode.NORMAL, Cause.STEADY, False
    return Mode(text(row[1])), Cause(text(row[2])), False


def _on_line(tx: Context, workload: int, found: Gate) -> Gate:
    row = tx.execute(SQL["read_flow"], {"workload": workload}).fetchone()
    if found.inline or row is None or row[0] is None:
        # Below its free run, or never measured: the limits alone hold it.
        return replace(found, verdict=Verdict.OPEN)
    limit = gcra.Limit.per_second(row[0])
    if limit is None:
        return replace(found, verdict=Verdict.CLOSED)
    now = tx.now * 1_000
    return replace(
        found,
        grants=gcra.available(limit, row[2], now),
        full=gcra.full(limit, row[2], now),
    )


def passed(tx: Context, workload: int, jobs: int) -> None:
    """Write down that `jobs` above the workload's reserve have passed its line."""
    row = tx.execute(SQL["read_flow"], {"workload": workload}).fetchone()
    limit = None if row is None or row[0] is None else gcra.Limit.per_second(row[0])
    if limit is None:
        return
    taken = gcra.take(limit, row[2], tx.now * 1_000, jobs, whole=True)
    tx.execute(SQL["move_tat"], {"workload": workload, "tat_us": taken.tat_us})


Told = dict[tuple[int, str], int]
"""How many jobs of a workload were refused, by workload and reason."""


class Refusals:
    """What one process has refused and not told the others yet; in memory, for all its threads.

    `refused` is called for every refusal and writes nothing. Once a second `flush` tells the
    database, and `told` forgets what it told once that is committed. From then on the line of
    refused callers is that of all processes.
    """

    def __init__(self, roll: Callable[[], float]) -> None:
        self._roll = roll
        self._lock = threading.Lock()
        self._ghosts: dict[int, Ghost] = {}
        self._untold: Told = {}

    def refused(
        self,
        tx: Context,
        workload: int,
        reason: str,
        jobs: int = 1,
        *,
        probe_ms: int | None = None,
    ) -> float | None:
        """Count a refusal; return in how many seconds to come back, None if nothing is known."""
        row = tx.execute(SQL["read_flow"], {"workload": workload}).fetchone()
        rate, stored = (None, 0) if row is None else (row[1], row[3])
        probe_us = None if probe_ms is None else probe_ms * 1_000
        with self._lock:
            self._untold[workload, reason] = self._untold.get((workload, reason), 0) + jobs
            ghost = self._ghosts.get(workload, Ghost())
            if ghost.end_us < stored:
                ghost = Ghost(stored)
            answer = returning.answer(
                ghost, rate, tx.now * 1_000, self._roll(), jobs=jobs, probe_us=probe_us
            )
            self._ghosts[workload] = answer.ghost
        return answer.after_s

    @property
    def untold(self) -> bool:
        """Whether there is something to flush."""
        return bool(self._untold)

    def flush(self, tx: Context) -> Told:
        """Tell the database what was refused, one flush at a time; return it for `told`."""
        with self._lock:
            telling = dict(self._untold)
        behind: defaultdict[int, int] = defaultdict(int)
        for (workload, reason), jobs in telling.items():
            tx.execute(SQL["add_refusal"], {"workload": workload, "reason": reason, "n": jobs})
            behind[workload] += jobs
        for workload, jobs in behind.items():
            row = tx.execute(SQL["read_flow"], {"workload": workload}).fetchone()
            if row is not None and row[1]:
                moved = Ghost(row[3]).after(jobs, row[1], tx.now * 1_000)
                key = {"workload": workload, "ghost_us": moved.end_us}
                tx.execute(SQL["move_ghost"], key)
        return telling

    def told(self, telling: Told) -> None:
        """Forget what a committed flush has told."""
        with self._lock:
            for key, jobs in telling.items():
                left = self._untold[key] - jobs
                if left:
                    self._untold[key] = left
                else:
                    del self._untold[key]
