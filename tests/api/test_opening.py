from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import millpond
from millpond import (
    BadConfig,
    ManualClock,
    Millpond,
    StoreClosed,
    StoreConfig,
    Task,
)


def in_a_fork(work: Callable[[], bool]) -> bool:
    """Run `work` in a forked child and tell whether it returned True, within 30 seconds."""
    child = os.fork()
    if child == 0:
        done = False
        try:
            done = work()
        finally:
            os._exit(0 if done else 1)
    for _ in range(3_000):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        threading.Event().wait(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


def test_making_a_pond_and_declaring_touches_no_file(tmp_path: Path) -> None:
    pond = Millpond(tmp_path / "jobs.db")
    pond.queue("reports", max_jobs=10)

    @pond.task
    def report() -> None: ...

    report.using(priority=10)
    pond.declarations()
    pond.close()

    assert list(tmp_path.iterdir()) == []


def test_the_first_use_opens_once_for_many_threads(tmp_path: Path) -> None:
    pond = Millpond(tmp_path / "jobs.db")
    barrier = threading.Barrier(8)
    stores: list[object] = []

    def use() -> None:
        barrier.wait(timeout=30)
        stores.append(pond.store)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)

    assert len(stores) == 8
    assert len({id(store) for store in stores}) == 1
    pond.close()


def test_a_closed_pond_says_so_and_can_be_opened_again(tmp_path: Path) -> None:
    pond = Millpond(tmp_path / "jobs.db")

    @pond.task
    def report(number: int) -> None: ...

    with pond:
        ref = report.enqueue(1)
    pond.close()

    with pytest.raises(StoreClosed, match=r"was closed.*open\(\)"):
        report.enqueue(2)
    with pond:
        assert ref.job().payload == {"number": 1}


def test_a_pond_is_an_asynchronous_block_too(tmp_path: Path) -> None:
    pond = Millpond(tmp_path / "jobs.db")

    @pond.task
    def report() -> None: ...

    async def use() -> None:
        async with pond:
            assert (await report.aenqueue()).answer == "admitted"

    asyncio.run(use())
    with pytest.raises(StoreClosed):
        pond.jobs()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_opens_for_itself(tmp_path: Path) -> None:
    pond = Millpond(tmp_path / "jobs.db")

    @pond.task
    def report(number: int) -> None: ...

    report.enqueue(1)
    parents = pond.store

    def child() -> bool:
        report.enqueue(2)
        pond.close()
        return pond._opening is not None and parents is not None

    assert in_a_fork(child)
    assert pond.store is parents
    assert report.enqueue(3).id > 2
    assert sorted(str(job.id) for job in pond.jobs()) == ["1", "2", "3"]
    pond.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_while_another_thread_opens_does_not_hang(tmp_path: Path) -> None:
    pond = Millpond(tmp_path / "jobs.db")
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with pond._opening.lock:
            held.set()
            done.wait(timeout=60)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert held.wait(timeout=30)

    try:
        assert in_a_fork(lambda: pond.jobs() == [])
    finally:
        done.set()
        thread.join(timeout=30)


def test_a_script_that_forgets_to_close_leaves_no_log_behind(tmp_path: Path) -> None:
    script = (
        "from millpond import Millpond\n"
        "pond = Millpond('jobs.db')\n"
        "@pond.task\n"
        "def report() -> None: ...\n"
        "print(report.enqueue().answer)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, "admitted\n")
    assert sorted(path.name for path in tmp_path.iterdir() if "wal" in path.name) == []


def test_importing_millpond_imports_neither_click_nor_asyncio() -> None:
    script = (
        "import sys, millpond\n"
        "[getattr(millpond, name) for name in millpond.__all__]\n"
        "print([name for name in ('click', 'asyncio', 'sqlite3', 'millpond.worker', "
        "'millpond.cli') if name in sys.modules], millpond.__version__ != '')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == "[] True\n"


def test_every_public_name_is_there_and_no_other() -> None:
    assert set(millpond._HOMES) | {"__version__"} == set(millpond.__all__) <= set(dir(millpond))
    for name in millpond.__all__:
        assert getattr(millpond, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Milpond'"):
        _ = millpond.Milpond


def test_what_is_declared_is_in_the_store_at_first_use(url: str) -> None:
    pond = Millpond(url)
    pond.queue("reports", max_jobs=10)

    @pond.task(queue="reports", priority=7)
    def report() -> None: ...

    assert pond.store.tasks()["report"] == report.settings
    pond.pause("reports")
    pond.close()


def test_what_is_declared_later_is_written_at_the_next_use(pond: Millpond) -> None:
    pond.open()

    @pond.task
    def report() -> None: ...

    pond.queue("mail", order="ageing", ageing="30s")

    assert "report" in pond.store.tasks()
    pond.pause("mail")


def test_declarations_tell_what_a_keeper_must_know(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    pond = Millpond(path, busy="2s")
    pond.queue("reports", max_bytes="2GiB", workloads={"critical": {"reserved": 5}})

    @pond.task(queue="reports")
    def report() -> None: ...

    told = pond.declarations()

    assert told.url == pond.url == path
    assert told.store == StoreConfig(url=path, busy_ms=2_000)
    assert told.tasks == (report.settings,)
    (queue,) = told.queues
    assert (queue.max_bytes, queue.workload("critical").reserved) == (2 << 30, 5)


def test_a_queue_is_declared_once(pond: Millpond) -> None:
    pond.queue("reports", max_jobs=5)
    pond.queue("reports", max_jobs=5)
    with pytest.raises(BadConfig, match="declared twice with different settings"):
        pond.queue("reports", max_jobs=6)
    with pytest.raises(BadConfig, match="did you mean 'max_jobs'"):
        pond.queue("mail", max_job=6)


def test_the_address_comes_from_the_environment_unless_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Millpond().url == "./millpond.db"
    monkeypatch.setenv("MILLPOND_URL", "other.db")
    assert Millpond().url == "other.db"
    assert Millpond("mine.db").url == "mine.db"


def test_the_file_of_settings_is_read_and_arguments_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "millpond.toml").write_text('[store]\nurl = "a.db"\nbusy = "1s"\n')
    (tmp_path / "other.toml").write_text('[store]\nbusy = "3s"\n')

    assert Millpond().config == StoreConfig(url="a.db", busy_ms=1_000)
    assert Millpond("b.db", busy="2s").config == StoreConfig(url="b.db", busy_ms=2_000)
    assert Millpond("b.db", config="other.toml").config.busy_ms == 3_000
    whole = StoreConfig(url="c.db", inbox=7)
    assert Millpond(config=whole).config is whole
    assert Millpond("d.db", config=whole).config == StoreConfig(url="d.db", inbox=7)


def test_settings_that_cannot_work_are_refused_at_once() -> None:
    with pytest.raises(BadConfig, match="postgresql"):
        Millpond("postgresql://localhost/app")
    with pytest.raises(BadConfig, match="did you mean 'busy'"):
        Millpond("a.db", bussy=5)
    with pytest.raises(BadConfig, match="must be set in it"):
        Millpond(config=StoreConfig(), busy=5)


def test_the_ponds_clock_is_the_stores(url: str) -> None:
    clock = ManualClock(now=1_600_000_000_000)
    with Millpond(url, clock=clock) as pond:

        @pond.task
        def report() -> None: ...

        assert report.enqueue().job().created_at.timestamp() == 1_600_000_000


def test_the_awaited_twins_open_without_holding_the_loop(tmp_path: Path) -> None:
    pond = Millpond(tmp_path / "jobs.db")

    @pond.task
    def report() -> None: ...

    async def use() -> list[str]:
        refs = await asyncio.gather(*(report.aenqueue() for _ in range(20)))
        await pond.aclose()
        return [ref.answer for ref in refs]

    assert asyncio.run(use()) == ["admitted"] * 20


def test_a_task_belongs_to_the_pond_that_made_it(tmp_path: Path) -> None:
    one, two = Millpond(tmp_path / "one.db"), Millpond(tmp_path / "two.db")

    def make(pond: Millpond) -> Task[[], None, None]:
        @pond.task
        def report() -> None: ...

        return report

    make(one).enqueue()
    assert (len(one.jobs()), len(two.jobs())) == (1, 0)
    one.close()
    two.close()


def test_a_pond_shows_its_address_without_a_password() -> None:
    assert repr(Millpond("jobs.db")) == "<Millpond jobs.db>"
