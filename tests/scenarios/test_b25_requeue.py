"""B25: an operator puts a dead job back, by the command line, and history tells all of it."""

from __future__ import annotations

import json

from tests.scenarios.mill import Mill

APP = """
@pond.task(**FAST)
def build(number: int, *, ctx: Context = Context.injected) -> str:
    note("start", ctx.job_id, ctx.attempt, ctx.operation_id)
    if not (yard.folder / "printer.open").exists():
        raise ConnectionError(f"printer {ctx.attempt} is off")
    return f"report {number}"
"""


def test_b25_a_dead_job_is_put_back_and_succeeds(mill: Mill) -> None:
    mill.write(APP)
    ref = mill.one("build", 1)
    worker = mill.worker().ready()
    mill.becomes(ref, "failed")
    assert held(mill) == 0

    refused = mill.run("retry", "999", "--url", "jobs.db")
    assert refused.returncode == 4
    mill.open("printer")
    done = mill.run(
        "retry", str(ref.id), "--by", "ann", "--note", "printer is on", "--url", "jobs.db"
    )
    assert (done.returncode, done.stdout) == (0, f"job {ref.id}: put back\n"), done.stderr

    job = mill.becomes(ref, "completed")
    assert (job.result, job.last_error, job.attempts) == ("report 1", None, 4)
    assert mill.outcomes(ref) == [("retried", 1), ("retried", 2), ("failed", 3), ("completed", 4)]
    history = mill.history(ref)
    assert [a.message for a in history] == [f"printer {n} is off" for n in (1, 2, 3)] + [None]
    assert len({a.ended_at for a in history}) == 4
    assert len({note.words[3] for note in mill.notes("start")}) == 1, "one operation"
    told = json.loads(mill.run("job", str(ref.id), "--json", "--url", "jobs.db").stdout)
    (event,) = told["events"]
    assert (event["who"], event["what"], event["note"]) == ("ann", "requeue", "printer is on")
    assert len(mill.pond.jobs()) == 1
    assert held(mill) == 0
    worker.stop()


def test_b25_capacity_is_taken_again_until_the_job_is_final(mill: Mill) -> None:
    mill.write(APP)
    refs = mill.put("build", 1, count=3)
    worker = mill.worker().ready()
    mill.all_final()
    worker.stop()
    assert held(mill) == 0
    answer = mill.run("retry", "--where", "task:build", "--yes", "--json", "--url", "jobs.db")
    assert json.loads(answer.stdout)["done"] == 3
    assert held(mill) == 3
    mill.open("printer")
    mill.worker()
    for ref in refs:
        mill.becomes(ref, "completed")
    assert held(mill) == 0


def held(mill: Mill) -> int:
    """Return how many jobs hold capacity, by the store's own counters."""
    snapshot = mill.pond.store.status()
    return sum(jobs for jobs, _ in snapshot.workload_jobs.values())
