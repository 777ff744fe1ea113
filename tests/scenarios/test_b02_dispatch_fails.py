"""B02: what fails is charged to the one job it belongs to; recovery gets through.

First: a payload that cannot be handed to its handler. Second: many expired leases while
somebody else holds the write lock.
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing

import pytest
from tests.scenarios.mill import Mill, until

from millpond.model import State, Want, WorkerInfo

APP = """
import enum
from dataclasses import dataclass

@dataclass
class Order:
    number: int
    def __post_init__(self):
        if self.number < 0:
            raise RuntimeError("no such order")

class Colour(enum.Enum):
    RED = "red"

@pond.task(**FAST)
def send(order: Order, colour: Colour = Colour.RED) -> int:
    note("sent", order.number)
    return order.number

@pond.task(**FAST)
async def asend(order: Order, colour: Colour = Colour.RED) -> int:
    note("sent", order.number)
    return order.number

@pond.task(**FAST)
def quick() -> None: ...
"""

BROKEN = {
    "no JSON": b'{"order": {"number": 4}',
    "no text": b'{"order": "\xff\xfe"}',
    "nothing": b"",
    "no object": b"[1, 2]",
    "an argument is missing": b"{}",
    "an argument too many": b'{"order": {"number": 4}, "colour": "red", "size": 1}',
    "the wrong type": b'{"order": {"number": "four"}}',
    "no member of the enum": b'{"order": {"number": 4}, "colour": "blue"}',
    "the class refuses": b'{"order": {"number": -4}}',
    "nested beyond reason": b'{"order": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
}


def spoil(mill: Mill, job: int, payload: bytes) -> None:
    """Change a stored payload as a mistake, another version or a bad disk may."""
    with closing(sqlite3.connect(mill.path)) as conn, conn:
        size = (
            len(payload)
            - conn.execute(
                "SELECT length(payload) FROM millpond_job WHERE id = ?", (job,)
            ).fetchone()[0]
        )
        conn.execute("UPDATE millpond_job SET payload = ? WHERE id = ?", (payload, job))
        # The charge follows, so that the standing checks still speak about millpond alone.
        conn.execute(
            "UPDATE millpond_job SET charged_bytes = charged_bytes + ? WHERE id = ?", (size, job)
        )
        conn.execute("UPDATE millpond_workload SET n_bytes = n_bytes + ?", (size,))


@pytest.mark.parametrize("task", ["send", "asend"])
def test_b02_only_the_job_that_cannot_be_dispatched_fails(mill: Mill, task: str) -> None:
    mill.write(APP)
    order = mill.app.Order
    good = [mill.one(task, order(n)) for n in range(9)]
    bad = {why: mill.one(task, order(4)) for why in BROKEN}
    good += [mill.one(task, order(n)) for n in range(9, 18)]
    for why, ref in bad.items():
        spoil(mill, ref.id, BROKEN[why])
    worker = mill.worker("--drain", batch=10, concurrency=2)
    assert worker.ended() == 0, worker.said

    assert sorted(int(note.words[1]) for note in mill.notes("sent")) == list(range(18))
    assert {mill.state(ref) for ref in good} == {"completed"}
    for why, ref in bad.items():
        assert mill.outcomes(ref) == [("failed", 1)], why
        (attempt,) = mill.history(ref)
        job = mill.job(ref)
        assert job.state == "failed"
        assert attempt.message, why
        assert job.reason, why
        assert len(attempt.message) < 2_000
    assert len({note.pid for note in mill.notes("sent")}) == 1, "no runner has died"


def test_b02_a_dispatch_failure_says_what_is_wrong(mill: Mill) -> None:
    mill.write(APP)
    ref = mill.one("send", mill.app.Order(4))
    spoil(mill, ref.id, b'{"order": {"number": "four"}}')
    assert mill.worker("--drain").ended() == 0

    (attempt,) = mill.history(ref)
    assert "order" in str(attempt.message)
    assert "number" in str(attempt.message)
    assert "int" in str(attempt.message)
    shown = mill.run("job", str(ref.id), "--app", "app:pond")
    assert "number" in shown.stdout
    assert "Traceback" not in shown.stderr


def leave_behind(mill: Mill, count: int) -> None:
    """Claim jobs for a worker that is never heard of again, under leases that end at once."""
    mill.put("quick", count=count, lease=0.2)
    store = mill.pond.store
    lost = store.register(WorkerInfo("lost", 1, None, "0", 50, ("quick",))).result()
    while store.claim(lost, [Want(500)], ["quick"], 500).result().claims:
        pass
    assert running(mill) == count


def running(mill: Mill) -> int:
    return mill.pond.status().counts[State.RUNNING]


@pytest.mark.parametrize("count", [250, 1_200])
def test_b02_recovery_gets_through_a_lock_that_others_hold(mill: Mill, count: int) -> None:
    mill.write(APP)
    leave_behind(mill, count)
    until(lambda: mill.pond.status().expired_leases == count)
    mill.folder.joinpath("other.py").write_text(
        "from tests.scenarios.yard import Yard\npond = Yard(__file__).pond\n"
    )
    # The pass takes several transactions, with time to get in between two of them.
    fault = "after-commit:sleep=0.3" if count > 500 else ""
    recovering = mill.worker(app="other:pond", recover="500ms", fault=fault)
    with closing(sqlite3.connect(mill.path, timeout=10)) as conn:
        if count > 500:
            until(lambda: running(mill) < count, what="the first ones are back")
        else:
            recovering.ready()
        conn.execute("BEGIN IMMEDIATE")
        left = running(mill)
        if count > 500:
            assert 0 < left < count
        wait = threading.Event()
        assert not wait.wait(2)
        assert running(mill) == left
        conn.rollback()

    until(lambda: running(mill) == 0, 2 * 0.625 + 3 * 0.3 + 0.5)
    assert mill.pond.status().counts["failed"] == 0
    mill.worker()
    assert mill.all_final() == {"completed": count}
    first = mill.pond.jobs(limit=1)[0]
    assert [each.outcome for each in mill.pond.attempts(first.id)] == ["lease_lost", "completed"]
