"""B20: a key holds as long as its job can still do something, however its worker ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.scenarios.mill import Mill, until

APP = """
@pond.task(**FAST)
def sync(*, ctx: Context = Context.injected) -> str:
    note("start", ctx.job_id, ctx.attempt)
    gate("end")
    if (yard.folder / "fail.open").exists():
        raise Fail("refused")
    return "done"

@pond.task(**FAST)
def other() -> None: ...

@pond.task(**FAST, key_ttl=0.5)
def brief() -> None: ...
"""

KEY = "sync-shop-9"


def test_b20_a_key_outlives_its_worker_and_ends_with_its_job(mill: Mill) -> None:
    mill.write(APP)
    first = mill.one("sync", key=KEY)
    for attempt in range(1, 4):
        worker = mill.worker().ready()
        mill.noted("start", attempt)
        assert again(mill).answer == "duplicate"
        worker.kill_all()
        duplicate = again(mill)
        assert (duplicate.answer, duplicate.id) == ("duplicate", first.id)
        assert duplicate.operation_id == first.operation_id
    mill.worker(queues="nothing", recover="200ms")
    mill.becomes(first, "failed")
    assert mill.outcomes(first) == [("lease_lost", n) for n in (1, 2, 3)]

    fresh = again(mill)
    assert (fresh.answer, fresh.id != first.id) == ("admitted", True)
    mill.accepted.append(fresh.id)
    assert again(mill).answer == "duplicate"
    mill.open("end")
    mill.worker()
    assert mill.all_final() == {"failed": 1, "completed": 1}
    # After success the key goes on holding: the request was served.
    assert (again(mill).answer, again(mill).id) == ("duplicate", fresh.id)


def again(mill: Mill, **options: Any) -> Any:
    return mill.app.sync.using(key=KEY, **options).enqueue()


@pytest.mark.parametrize("end", ["failed", "cancelled while it waits", "cancelled while it runs"])
def test_b20_a_job_that_came_to_nothing_frees_its_key(mill: Mill, end: str) -> None:
    mill.write(APP)
    first = mill.one("sync", key=KEY)
    if end == "cancelled while it waits":
        mill.pond.cancel(first.id)
    else:
        mill.worker()
        mill.noted("start")
        if end == "failed":
            mill.open("fail")
        else:
            mill.pond.cancel(first.id)
            assert again(mill).answer == "duplicate", "it may still complete"
            mill.open("fail")
        mill.open("end")
    mill.becomes(first, end.split(maxsplit=1)[0])
    fresh = again(mill)
    assert fresh.answer == "admitted"
    mill.accepted.append(fresh.id)


def test_b20_another_queue_or_task_has_keys_of_its_own_and_learns_nothing(mill: Mill) -> None:
    mill.write(APP)
    first = mill.one("sync", key=KEY, operation_id="secret-operation", meta={"who": "shop 9"})
    elsewhere = mill.one("sync", key=KEY, queue="imports")
    unrelated = mill.one("other", key=KEY)
    assert {first.answer, elsewhere.answer, unrelated.answer} == {"admitted"}
    assert len({first.id, elsewhere.id, unrelated.id}) == 3
    for ref in (elsewhere, unrelated):
        job = json.dumps(mill.job(ref).to_json())
        assert "secret-operation" not in job
        assert "shop 9" not in job
    mill.open("end")
    mill.worker()
    assert mill.all_final() == {"completed": 3}


def test_b20_the_command_line_says_whose_duplicate_it_is(mill: Mill) -> None:
    mill.write(APP)
    first = mill.one("sync", key=KEY)
    ask = ["enqueue", "sync", "--key", KEY, "--print", "json", "--app", "app:pond"]
    done = mill.run(*ask)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["answer"], said["id"]) == ("duplicate", first.id)


def test_b20_a_key_holds_after_success_for_its_time_and_no_longer(mill: Mill) -> None:
    mill.write(APP)
    first = mill.one("brief", key=KEY)
    assert mill.app.brief.using(key=KEY).enqueue().answer == "duplicate"
    mill.worker(keep_completed="7d")
    mill.becomes(first, "completed")
    refs = []

    def freed() -> bool:
        ref = mill.app.brief.using(key=KEY).enqueue()
        refs.append(ref)
        return bool(ref.answer == "admitted")

    until(freed, 3)
    mill.accepted.append(refs[-1].id)
    assert all(ref.id == first.id for ref in refs[:-1])
    mill.all_final()
