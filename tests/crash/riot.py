"""Runs roles on one file, kills them at random and starts them again; then counts."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from millpond.store import open_store


@dataclass
class Outcome:
    """What the logs promise and what the file holds."""

    accepted: set[int] = field(default_factory=set)
    completed: Counter[int] = field(default_factory=Counter)
    torn: list[str] = field(default_factory=list)
    kills: int = 0
    died: list[str] = field(default_factory=list)


class Riot:
    """A crowd of processes on one database."""

    def __init__(self, folder: Path, roles: dict[str, int], seed: int, env: dict[str, str]) -> None:
        self.path = folder / "riot.db"
        self._folder = folder
        self._roll = random.Random(seed)
        self._env = env
        self._logs = 0
        self.outcome = Outcome()
        open_store(str(self.path)).close()
        self._places = [role for role, many in roles.items() for _ in range(many)]
        self._running = [self._start(role) for role in self._places]

    def _start(self, role: str) -> subprocess.Popen[bytes]:
        self._logs += 1
        log = self._folder / f"{role}-{self._logs}.log"
        args = [role, str(self.path), str(log), str(self._roll.randrange(1 << 30))]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.crash.roles", *args],
            env=self._env,
            stderr=subprocess.PIPE,
        )

    def run(self, seconds: float, pause: tuple[float, float] = (0.1, 0.5)) -> Outcome:
        """Kill and restart for so long, then kill everybody and read the logs.

        On a machine that has too much to do it goes on, for a minute at most and with longer
        lives, until something has happened that can be counted.
        """
        wait = threading.Event()
        began = time.monotonic()
        while (lasts := time.monotonic() - began) < seconds or (lasts < 60 and self._little()):
            wait.wait(self._roll.uniform(*pause) * (1 if lasts < seconds else 8))
            self._kill(self._roll.randrange(len(self._running)), restart=True)
        for at in range(len(self._running)):
            self._kill(at, restart=False)
        self._read_logs()
        return self.outcome

    def _little(self) -> bool:
        """Whether hardly anything was accepted, or completed where there are workers."""
        logs = "".join(log.read_text() for log in self._folder.glob("*.log"))
        workers = "worker" in self._places
        return logs.count("accepted ") < 150 or (workers and logs.count("completed ") < 50)

    def _kill(self, at: int, *, restart: bool) -> None:
        process = self._running[at]
        if process.poll() is not None:
            said = process.stderr.read().decode() if process.stderr else ""
            self.outcome.died.append(
                f"{self._places[at]} ended {process.returncode}: {said[-2000:]}"
            )
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        if process.stderr:
            process.stderr.close()
        self.outcome.kills += 1
        if restart:
            self._running[at] = self._start(self._places[at])

    def _read_logs(self) -> None:
        for log in self._folder.glob("*.log"):
            for line in log.read_text().splitlines():
                word, _, rest = line.partition(" ")
                if word == "accepted":
                    self.outcome.accepted.add(int(rest))
                elif word == "completed":
                    self.outcome.completed[int(rest)] += 1
                elif word == "torn":
                    self.outcome.torn.append(line)


def complaints(riot: Riot) -> list[str]:
    """Return everything that contradicts what the processes were told."""
    outcome = riot.outcome
    wrong = list(outcome.died) + outcome.torn
    store = open_store(str(riot.path))
    wrong += store.verify()
    store.close()
    conn = sqlite3.connect(riot.path)
    jobs = {row[0] for row in conn.execute("SELECT id FROM millpond_job")}
    wrong += [f"job {job} was accepted and is gone" for job in outcome.accepted - jobs]
    done = {r[0] for r in conn.execute("SELECT id FROM millpond_final WHERE state = 'completed'")}
    for job, times in outcome.completed.items():
        if times > 1:
            wrong.append(f"job {job} was settled as completed {times} times")
        if job not in done:
            wrong.append(f"job {job} was settled as completed and is not final")
    if conn.execute("SELECT 1 FROM sqlite_schema WHERE name = 'orders'").fetchone():
        wrong += [
            f"order {order} and job {job} did not commit together"
            for order, job in conn.execute(
                "SELECT o.id, o.job FROM orders o LEFT JOIN millpond_job j ON j.id = o.job"
                " WHERE j.id IS NULL OR j.origin <> 'order-' || o.id"
            )
        ]
        wrong += [
            f"job {job} of {origin} has no order"
            for job, origin in conn.execute(
                "SELECT j.id, j.origin FROM millpond_job j WHERE j.origin IS NOT NULL"
                " AND NOT EXISTS (SELECT 1 FROM orders o WHERE o.job = j.id)"
            )
        ]
    conn.close()
    return wrong
