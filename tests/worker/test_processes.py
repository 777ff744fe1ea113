"""`run_worker` as a process with runner processes: signals, deaths, starts and stops."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import psutil
import pytest
from tests.worker.conftest import Jobs, Lab, wait_for
from tests.worker.fakes import WAIT_S

from millpond.model import State

SLEEPER = """
from millpond import Backoff
@pond.task(lease=1.0, max_attempts=3, retry=Backoff(base=0))
def sleeps(seconds):
    open(f"{folder}/pids", "a").write(f"{os.getpid()} ")
    time.sleep(seconds)

@pond.task(lease=30)
def naps(n, seconds):
    time.sleep(seconds)
    open(f"{folder}/ran", "a").write(f"{n} ")

@pond.task(lease=30)
async def anaps(seconds):
    open(f"{folder}/pids", "a").write(f"{os.getpid()} ")
    try:
        await asyncio.sleep(seconds)
    finally:
        open(f"{folder}/cleaned", "a").write("cleaned ")
"""


def test_jobs_run_in_a_process_of_their_own_and_results_come_back(lab: Lab) -> None:
    app = lab.app(
        "@pond.task\n"
        "def where(): return os.getpid()\n"
        "@pond.task\n"
        "async def awhere(): return os.getpid()\n"
    )
    pond = lab.pond()
    worker = lab.start(app)
    wait_for(lambda: worker.said("worker_started"))
    refs = [pond.enqueue("where"), pond.enqueue("awhere")]
    Jobs(pond).wait_final(*(ref.id for ref in refs))
    (runner,) = worker.runners()
    assert [ref.job().result for ref in refs] == [runner, runner]
    assert runner != worker.pid
    assert worker.stop() == "worker stopped: 2 finished, 0 failed, 0 retried, 0 handed back, 0 lost"
    assert not psutil.pid_exists(runner)
    assert pond.store.workers() == []
    assert list((lab.folder / "jobs.db-run").iterdir()) == []


def test_several_runners_share_the_work(lab: Lab) -> None:
    app = lab.app("@pond.task\ndef where():\n    time.sleep(0.2)\n    return os.getpid()\n")
    pond = lab.pond()
    lab.start(app, drain=True).wait()
    refs = [pond.enqueue("where") for _ in range(4)]
    worker = lab.start(app, processes=2, concurrency=2, drain=True)
    assert worker.wait() == 0
    pids = [ref.job().result for ref in refs]
    assert sorted(pids.count(pid) for pid in set(pids)) == [2, 2]


# --- starting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import no_such_module_here\n", ["Traceback", "No module named 'no_such_module_here'"]),
        ("raise SystemExit('enough')\n", ["enough"]),
        ("pond = 12\n", ["is a int", "Millpond"]),
        ("del pond\n", ["has no 'pond'"]),
    ],
)
def test_an_application_that_cannot_be_imported_ends_the_worker_with_the_reason(
    lab: Lab, code: str, words: list[str], processes: int
) -> None:
    worker = lab.start(lab.app(code), processes=processes)
    assert worker.wait() == 1
    for each in words:
        assert worker.said(each), worker.log()


def test_runners_that_disagree_are_refused_by_name(lab: Lab) -> None:
    app = lab.app(
        "@pond.task\n"
        "def same(): pass\n"
        "mark = f'{folder}/second'\n"
        "try:\n"
        "    os.close(os.open(mark, os.O_CREAT | os.O_EXCL))\n"
        "    extra = False\n"
        "except FileExistsError:\n"
        "    extra = True\n"
        "if extra:\n"
        "    @pond.task(name='only_there')\n"
        "    def only(): pass\n"
    )
    worker = lab.start(app, processes=2)
    assert worker.wait() == 1
    assert worker.said("task only_there differs"), worker.log()
    assert not worker.said("task same")


def test_a_stop_while_the_application_is_still_imported_ends_quietly(lab: Lab) -> None:
    app = lab.app("open(f'{folder}/importing', 'w').close()\ntime.sleep(60)\n")
    worker = lab.start(app)
    wait_for(lambda: lab.touched("importing"))
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_runner_that_cannot_start_again_ends_the_worker_after_three_tries(lab: Lab) -> None:
    app = lab.app(
        "if os.path.exists(f'{folder}/broken'): raise ImportError('changed on disk')\n"
        "@pond.task(max_attempts=1)\n"
        "def dies(): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    pond = lab.pond()
    worker = lab.start(app)
    wait_for(lambda: worker.said("worker_started"))
    lab.touch("broken")
    pond.enqueue("dies")
    assert worker.wait() == 1
    assert worker.said("changed on disk")
    assert worker.said("3 times in a row")


# --- stopping (B03) -----------------------------------------------------------------------------


def test_sigterm_claims_nothing_more_and_hands_back_what_has_not_started(lab: Lab) -> None:
    app = lab.app(SLEEPER)
    pond = lab.pond()
    first = lab.start(app, concurrency=1)
    wait_for(lambda: first.said("worker_started"))
    refs = [pond.enqueue("naps", {"n": n, "seconds": 0.1}) for n in range(40)]
    wait_for(lambda: len(lab.lines("ran")) >= 5)
    first.signal(signal.SIGTERM)
    second = lab.start(app, concurrency=1)
    assert first.wait() == 0
    log = first.log()
    assert "claimed" not in log[log.index("worker_stopping") :]
    jobs = Jobs(pond)
    jobs.wait_final(*(ref.id for ref in refs))
    second.stop()
    ran = lab.lines("ran")
    assert sorted(map(int, ran)) == list(range(40))
    assert all(jobs.outcomes(ref.id) == ["completed"] for ref in refs)
    assert {ref.job().attempts for ref in refs} == {1}
    jobs.sound()


def test_a_job_that_ends_within_the_drain_is_completed_once(lab: Lab) -> None:
    app = lab.app(SLEEPER)
    pond = lab.pond()
    worker = lab.start(app, concurrency=1, drain_ms=10_000)
    wait_for(lambda: worker.said("worker_started"))
    ref = pond.enqueue("naps", {"n": 1, "seconds": 0.6})
    Jobs(pond).wait_running(ref.id)
    assert worker.stop().startswith("worker stopped: 1 finished")
    assert Jobs(pond).outcomes(ref.id) == ["completed"]


@pytest.mark.parametrize("task", ["sleeps", "anaps"])
def test_what_outlasts_the_drain_is_ended_and_goes_back_uncharged(lab: Lab, task: str) -> None:
    app = lab.app(SLEEPER)
    pond = lab.pond()
    worker = lab.start(app, drain_ms=100)
    wait_for(lambda: worker.said("worker_started"))
    ref = pond.enqueue(task, {"seconds": 60})
    wait_for(lambda: lab.lines("pids"))
    assert "1 handed back" in worker.stop()
    assert (ref.job().state, ref.job().attempts) == (State.READY, 0)
    assert Jobs(pond).outcomes(ref.id) == ["released"]
    assert lab.lines("cleaned") == (["cleaned"] if task == "anaps" else [])
    assert not psutil.pid_exists(int(lab.lines("pids")[0]))


def test_without_runner_processes_a_signal_drains_as_well(lab: Lab) -> None:
    app = lab.app(SLEEPER)
    pond = lab.pond()
    worker = lab.start(app, processes=0)
    wait_for(lambda: worker.said("worker_started"))
    ref = pond.enqueue("naps", {"n": 1, "seconds": 0.4})
    Jobs(pond).wait_running(ref.id)
    assert worker.runners() == []
    assert worker.stop().startswith("worker stopped: 1 finished")
    assert Jobs(pond).outcomes(ref.id) == ["completed"]


def test_a_second_signal_does_not_wait(lab: Lab) -> None:
    app = lab.app(SLEEPER)
    pond = lab.pond()
    worker = lab.start(app, drain_ms=3_600_000)
    wait_for(lambda: worker.said("worker_started"))
    ref = pond.enqueue("sleeps", {"seconds": 60})
    wait_for(lambda: lab.lines("pids"))
    worker.signal(signal.SIGTERM)
    wait_for(lambda: worker.said("worker_stopping"))
    worker.signal(signal.SIGINT)
    assert worker.wait() == 0
    assert (ref.job().state, ref.job().attempts) == (State.READY, 0)


def test_a_signal_to_the_whole_group_drains_and_does_not_kill_the_runner(lab: Lab) -> None:
    app = lab.app(SLEEPER)
    pond = lab.pond()
    worker = lab.start(app)
    wait_for(lambda: worker.said("worker_started"))
    ref = pond.enqueue("naps", {"n": 1, "seconds": 0.5})
    Jobs(pond).wait_running(ref.id)
    for pid in worker.runners():
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    worker.signal(signal.SIGINT)
    assert worker.wait() == 0
    assert Jobs(pond).outcomes(ref.id) == ["completed"]


def test_programs_that_handlers_start_can_be_interrupted(lab: Lab) -> None:
    app = lab.app(
        "import subprocess\n"
        "@pond.task\n"
        "def starts():\n"
        "    child = subprocess.Popen(['sleep', '60'])\n"
        "    child.terminate()\n"
        "    return child.wait(10)\n"
    )
    pond = lab.pond()
    worker = lab.start(app)
    wait_for(lambda: worker.said("worker_started"))
    ref = pond.enqueue("starts")
    Jobs(pond).wait_final(ref.id)
    assert ref.job().result == -signal.SIGTERM
    worker.stop()


def test_a_handler_that_exits_fails_and_the_runner_lives_on(lab: Lab) -> None:
    app = lab.app(
        "@pond.task(max_attempts=1)\n"
        "def leaves(): sys.exit(3)\n"
        "@pond.task\n"
        "def where(): return os.getpid()\n"
    )
    pond = lab.pond()
    worker = lab.start(app)
    wait_for(lambda: worker.said("worker_started"))
    (runner,) = worker.runners()
    ref = pond.enqueue("leaves")
    assert Jobs(pond).wait_final(ref.id) == [State.FAILED]
    after = pond.enqueue("where")
    Jobs(pond).wait_final(after.id)
    assert after.job().result == runner
    worker.stop()


# --- deaths (B01, B10) --------------------------------------------------------------------------


def test_a_killed_worker_takes_its_runners_along_and_its_jobs_run_elsewhere(lab: Lab) -> None:
    app = lab.app(SLEEPER)
    pond = lab.pond()
    first = lab.start(app)
    wait_for(lambda: first.said("worker_started"))
    ref = pond.enqueue("sleeps", {"seconds": 60})
    wait_for(lambda: lab.lines("pids"))
    (runner,) = first.runners()
    first.signal(signal.SIGKILL)
    first.process.wait(WAIT_S)
    wait_for(lambda: not psutil.pid_exists(runner), "the end of the runner")
    second = lab.start(app)
    wait_for(lambda: len(lab.lines("pids")) == 2)
    jobs = Jobs(pond)
    (attempt,) = jobs.history(ref.id)
    assert (attempt.outcome, attempt.number) == ("lease_lost", 1)
    assert attempt.started_at is not None
    assert attempt.ended_at >= attempt.started_at
    assert ref.job().attempts == 2
    second.signal(signal.SIGTERM)
    wait_for(lambda: second.said("worker_stopping"))
    second.signal(signal.SIGTERM)
    second.wait()
    jobs.sound()


def test_a_job_that_kills_its_runner_ends_failed_with_the_signal_and_harms_no_other(
    lab: Lab,
) -> None:
    app = lab.app(
        "from millpond import Backoff\n"
        "@pond.task(max_attempts=3, retry=Backoff(base=0.05))\n"
        "def poison(): os.kill(os.getpid(), signal.SIGKILL)\n"
        "@pond.task\n"
        "def healthy(n): open(f'{folder}/ran', 'a').write(f'{n} ')\n"
    )
    pond = lab.pond()
    worker = lab.start(app, concurrency=1)
    wait_for(lambda: worker.said("worker_started"))
    bad = pond.enqueue("poison")
    good = [pond.enqueue("healthy", {"n": n}) for n in range(20)]
    jobs = Jobs(pond)
    jobs.wait_final(bad.id, *(ref.id for ref in good))
    row = jobs.row(bad.id)
    assert (row.state, row.attempts) == (State.FAILED, 3)
    assert row.reason is not None
    assert "runner killed by signal 9 (SIGKILL)" in row.reason
    assert [attempt.signal for attempt in jobs.history(bad.id)] == [9, 9, 9]
    assert jobs.outcomes(bad.id) == ["crashed"] * 3
    assert sorted(map(int, lab.lines("ran"))) == list(range(20))
    assert {ref.job().attempts for ref in good} == {1}
    assert worker.process.poll() is None
    worker.stop()
    jobs.sound()


def test_a_cancelled_job_that_takes_its_runner_along_is_not_run_again(lab: Lab) -> None:
    app = lab.app(
        "from millpond import Backoff, Context\n"
        "@pond.task(max_attempts=5, retry=Backoff(base=0))\n"
        "def poison(*, ctx: Context):\n"
        "    open(f'{folder}/runs', 'a').write(f'{ctx.attempt} ')\n"
        "    while ctx.attempt == 2 and not os.path.exists(f'{folder}/go'): time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    pond = lab.pond()
    worker = lab.start(app)
    wait_for(lambda: worker.said("worker_started"))
    ref = pond.enqueue("poison")
    wait_for(lambda: len(lab.lines("runs")) == 2, "the second attempt")
    pond.cancel(ref.id)
    lab.touch("go")
    jobs = Jobs(pond)
    assert jobs.wait_final(ref.id) == [State.CANCELLED]
    assert jobs.outcomes(ref.id) == ["crashed", "crashed"]
    worker.stop()
    assert lab.lines("runs") == ["1", "2"]
    jobs.sound()


def test_a_crashed_job_runs_again_with_nobody_beside_it(lab: Lab) -> None:
    app = lab.app(
        "from millpond import Backoff, Context\n"
        "lock, inside = threading.Lock(), set()\n"
        "@pond.task(max_attempts=2, retry=Backoff(base=0))\n"
        "def poison(*, ctx: Context):\n"
        "    if ctx.attempt == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    with lock: beside = sorted(inside); inside.add('poison')\n"
        "    time.sleep(0.2)\n"
        "    with lock: inside.discard('poison')\n"
        "    return beside\n"
        "@pond.task(retry=Backoff(base=0))\n"
        "def other(n):\n"
        "    with lock: beside = 'poison' in inside; inside.add(n)\n"
        "    time.sleep(0.01)\n"
        "    with lock: inside.discard(n)\n"
        "    return beside\n"
    )
    pond = lab.pond()
    lab.start(app, drain=True).wait()
    bad = pond.enqueue("poison")
    others = [pond.enqueue("other", {"n": n}) for n in range(60)]
    worker = lab.start(app, concurrency=4, drain=True)
    assert worker.wait() == 0, worker.log()
    assert bad.job().result == []
    done = [ref.job() for ref in others]
    assert {job.state for job in done} == {State.COMPLETED}
    assert not any(job.result for job in done)


def test_a_crashed_job_gets_a_runner_of_its_own_when_all_others_are_busy_for_long(
    lab: Lab,
) -> None:
    app = lab.app(
        "from millpond import Backoff, Context\n"
        "@pond.task(max_attempts=2, retry=Backoff(base=1.0, jitter='none'))\n"
        "def poison(*, ctx: Context):\n"
        "    if ctx.attempt == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return os.getpid()\n"
        "@pond.task(lease=30)\n"
        "def long():\n"
        "    while not os.path.exists(f'{folder}/enough'): time.sleep(0.01)\n"
        "    return os.getpid()\n"
    )
    pond = lab.pond()
    worker = lab.start(app, concurrency=2)
    wait_for(lambda: worker.said("worker_started"))
    bad = pond.enqueue("poison")
    jobs = Jobs(pond)
    wait_for(lambda: jobs.row(bad.id).crashes == 1, "the crash")
    long = pond.enqueue("long")
    assert jobs.wait_final(bad.id) == [State.COMPLETED]
    assert jobs.state(long.id) is State.RUNNING
    wait_for(lambda: len(worker.runners()) == 1, "the end of the guest")
    lab.touch("enough")
    jobs.wait_final(long.id)
    assert long.job().result != bad.job().result
    worker.stop()


def test_a_dead_runners_unstarted_jobs_are_not_charged(lab: Lab) -> None:
    app = lab.app(
        "@pond.task(max_attempts=3)\n"
        "def work(how):\n"
        "    if how == 'wait':\n"
        "        open(f'{folder}/waiting', 'w').close()\n"
        "        while not os.path.exists(f'{folder}/go'): time.sleep(0.005)\n"
        "    if how == 'die' and not os.path.exists(f'{folder}/died'):\n"
        "        open(f'{folder}/died', 'w').close()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    pond = lab.pond()
    lab.start(app, drain=True).wait()
    quick = [pond.enqueue("work", {"how": "run"}) for _ in range(100)]
    wait = pond.enqueue("work", {"how": "wait"})
    die = pond.enqueue("work", {"how": "die"})
    behind = [pond.enqueue("work", {"how": "run"}) for _ in range(50)]
    worker = lab.start(app, concurrency=1, window_ms=60_000)
    wait_for(lambda: lab.touched("waiting"))
    jobs = Jobs(pond)
    wait_for(lambda: all(jobs.state(ref.id) is State.RUNNING for ref in behind))
    lab.touch("go")
    jobs.wait_final(*(ref.id for ref in [*quick, wait, *behind]))
    assert jobs.outcomes(die.id)[0] == "crashed"
    assert {ref.job().attempts for ref in behind} == {1}
    worker.signal(signal.SIGKILL)


# --- standing still -----------------------------------------------------------------------------


def test_a_worker_that_stood_still_past_its_lease_damages_nothing(lab: Lab) -> None:
    app = lab.app(
        "from millpond import Backoff\n"
        "@pond.task(lease=1.0, max_attempts=5, retry=Backoff(base=0))\n"
        "def work():\n"
        "    open(f'{folder}/pids', 'a').write(f'{os.getpid()} ')\n"
        "    if len(open(f'{folder}/pids').read().split()) == 1:\n"
        "        while not os.path.exists(f'{folder}/go'): time.sleep(0.01)\n"
        "    return os.getpid()\n"
    )
    pond = lab.pond()
    first = lab.start(app)
    wait_for(lambda: first.said("worker_started"))
    ref = pond.enqueue("work")
    wait_for(lambda: lab.lines("pids"))
    first.signal(signal.SIGSTOP)
    second = lab.start(app)
    jobs = Jobs(pond)
    jobs.wait_final(ref.id)
    result = ref.job().result
    lab.touch("go")
    first.signal(signal.SIGCONT)
    wait_for(lambda: jobs.history(ref.id)[0].late_at is not None, "the late report")
    assert ref.job().result == result == int(lab.lines("pids")[1])
    assert jobs.outcomes(ref.id) == ["lease_lost", "completed"]
    after = pond.enqueue("work")
    jobs.wait_final(after.id)
    assert first.stop()
    assert second.stop()
    jobs.sound()


# --- process 1 ----------------------------------------------------------------------------------


def test_as_process_1_it_reaps_what_it_did_not_start(lab: Lab) -> None:
    app = lab.app(
        "import subprocess\n"
        "@pond.task\n"
        "def orphans():\n"
        "    out = subprocess.run(['sh', '-c', 'sleep 0.2 & echo $!'], stdout=subprocess.PIPE)\n"
        "    return int(out.stdout)\n"
        "@pond.task\n"
        "def where(): return os.getpid()\n"
    )
    # A subreaper inherits orphans as process 1 does.
    lab.subreaper = True
    pond = lab.pond()
    worker = lab.start(app, adopt=True)
    wait_for(lambda: worker.said("worker_started"))
    orphan = pond.enqueue("orphans")
    Jobs(pond).wait_final(orphan.id)
    pid = orphan.job().result
    assert isinstance(pid, int)
    wait_for(lambda: not psutil.pid_exists(pid), "the reaping of the orphan")
    for child in worker.runners():
        os.kill(child, signal.SIGKILL)
    after = pond.enqueue("where")
    Jobs(pond).wait_final(after.id)
    assert worker.said("runner killed by signal 9")
    worker.stop()


def test_an_idle_worker_does_next_to_nothing(lab: Lab) -> None:
    app = lab.app("@pond.task\ndef work(): pass\n")
    worker = lab.start(app, poll_ms=1_000, recover_ms=5_000)
    wait_for(lambda: worker.said("worker_started"))
    tree = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children()]
    threading.Event().wait(1)
    files = [Path(lab.url), Path(lab.url + "-wal")]

    def spent() -> float:
        return sum(sum(each.cpu_times()[:2]) for each in tree)

    before, written = spent(), [path.stat().st_mtime_ns for path in files if path.exists()]
    threading.Event().wait(4)
    assert spent() - before <= 0.04
    assert [path.stat().st_mtime_ns for path in files if path.exists()] == written
    worker.stop()
