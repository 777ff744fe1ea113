"""Commands as processes of their own: workers, signals, pipes, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.cli.conftest import environment

from millpond.cli.exits import Code

SLOW = """

@pond.task(queue="mail")
def nap(seconds: float):
    import time
    time.sleep(seconds)
"""


def eventually(condition, timeout=20.0):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        select_nothing(0.02)


def select_nothing(seconds):
    """Let others work: what is awaited happens in another process."""
    import select

    select.select([], [], [], seconds)


def test_a_worker_drains_what_is_ready_and_its_last_line_sums_up(run, process, pond):
    for _ in range(3):
        run("enqueue", "send", "to=a", "--app", "app:pond")
    run("enqueue", "refuse", "--app", "app:pond")
    ended = process("worker", "app:pond", "--drain")
    assert ended.returncode == 0
    last = ended.stderr.splitlines()[-1]
    assert "3 finished, 1 failed" in last
    assert "0 handed back, 0 lost" in last


def test_a_worker_logs_json_when_told_to(run, process, pond):
    run("enqueue", "send", "to=a", "--app", "app:pond")
    ended = process("worker", "app:pond", "--drain", MILLPOND_LOG_FORMAT="json")
    events = [json.loads(line) for line in ended.stderr.splitlines() if line.startswith("{")]
    assert "finished" in {event.get("event") for event in events}


def test_a_worker_serves_only_the_queues_it_was_told_to(run, process, pond):
    run("enqueue", "send", "to=a", "--app", "app:pond")
    run("enqueue", "build", "number=1", "--app", "app:pond")
    assert process("worker", "app:pond", "--drain", "-q", "reports:1").returncode == 0
    assert {job.task: job.state for job in pond.jobs()} == {"build": "completed", "send": "ready"}
    assert process("worker", "app:pond", "--drain", MILLPOND_QUEUES="mail,reports").returncode == 0
    assert {job.state for job in pond.jobs()} == {"completed"}


def test_once_runs_at_most_one_job_a_slot(run, process, pond):
    for _ in range(5):
        run("enqueue", "send", "to=a", "--app", "app:pond")
    assert process("worker", "app:pond", "--once", "--concurrency", "2").returncode == 0
    assert sum(job.state == "completed" for job in pond.jobs()) == 2


def test_a_worker_stops_in_order_on_sigterm(run, start, folder, pond):
    with (folder / "app.py").open("a") as app:
        app.write(SLOW)
    for _ in range(6):
        run("enqueue", "nap", "seconds=1.5", "--app", "app:pond")
    worker = start("worker", "app:pond", "--concurrency", "1")
    eventually(lambda: pond.jobs(state="running"))
    eventually(lambda: any(job.started_at for job in pond.jobs(state="running")))
    worker.terminate()
    _, log = worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert "finished" in log.splitlines()[-1]
    states = [job.state for job in pond.jobs()]
    assert "running" not in states
    assert "ready" in states
    assert pond.verify() == []


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("nothere:pond", "no module 'nothere'"),
        ("broken:pond", "ZeroDivisionError"),
        ("app:nothing", "has no 'nothing'"),
        ("app", "module:attribute"),
    ],
)
@pytest.mark.parametrize("processes", ["1", "0"])
def test_an_application_that_cannot_be_imported_ends_the_worker(
    process, folder, app, said, processes
):
    (folder / "broken.py").write_text("1 / 0\n")
    ended = process("worker", app, "--processes", processes)
    assert ended.returncode in {Code.FAILED, Code.USAGE}
    assert said in ended.stderr
    assert ("Traceback" in ended.stderr) is (app == "broken:pond")


def test_an_application_that_cannot_be_imported_ends_an_enqueue_too(process, folder):
    (folder / "broken.py").write_text("1 / 0\n")
    ended = process("enqueue", "send", "--app", "broken:pond")
    assert ended.returncode == Code.FAILED
    assert "ZeroDivisionError" in ended.stderr


def test_a_worker_whose_settings_cannot_work_is_a_usage_error(process, folder):
    ended = process("worker", "app:pond", "-q", "mail:9", "--concurrency", "2")
    assert ended.returncode == Code.USAGE
    assert "asks for 9 slots" in ended.stderr


def test_a_worker_at_a_newer_schema_ends_with_its_own_code_b34(process, pond, folder):
    import sqlite3
    from contextlib import closing

    pond.close()
    with closing(sqlite3.connect("millpond.db")) as newer:
        newer.execute("INSERT INTO millpond_schema_version VALUES (2, 'later', 2, 0)")
        newer.commit()
    ended = process("worker", "app:pond", "--drain")
    assert ended.returncode == Code.SCHEMA
    assert "schema 2" in ended.stderr


def test_status_names_a_task_that_no_live_worker_knows_b33(run, start, pond):
    worker = start("worker", "app:pond")
    eventually(lambda: any(each.live for each in pond.status().workers))
    pond.enqueue("v2.export", {}, queue="mail")
    assert run("status").stdout.splitlines()[0] == "no handler for v2.export: 1"
    assert "no_handler" in run("explain", "1", "--json").stdout
    assert "no handler for v2.export: 1" in run("doctor").stdout
    shown = run("workers").stdout
    assert f":{worker.pid}" in shown
    assert "live" in shown
    worker.terminate()
    assert worker.wait(timeout=30) == 0
    assert pond.get(1).attempts == 0


def test_a_job_is_followed_to_its_end(run, start, process, pond):
    run("enqueue", "send", "to=a", "--delay", "1", "--app", "app:pond")
    follower = start("job", "1", "--follow", "--json")
    worker = start("worker", "app:pond")
    out, _ = follower.communicate(timeout=30)
    assert follower.returncode == 0
    states = [json.loads(line)["state"] for line in out.splitlines()]
    assert states[0] == "scheduled"
    assert states[-1] == "completed"
    worker.terminate()
    worker.communicate(timeout=30)


def test_a_cancelled_running_job_is_asked_to_stop(run, start, folder, pond):
    with (folder / "app.py").open("a") as app:
        app.write(SLOW)
    run("enqueue", "nap", "seconds=3", "--max-attempts", "1", "--app", "app:pond")
    worker = start("worker", "app:pond")
    eventually(lambda: pond.get(1).state == "running")
    assert run("cancel", "1").stdout == "job 1: asked to stop\n"
    assert "running" in run("explain", "1").stdout
    worker.terminate()
    worker.communicate(timeout=30)


def test_a_watch_ends_quietly_with_ctrl_c(start, pond):
    watcher = start("status", "--watch", "--json")
    first = watcher.stdout.readline()
    assert json.loads(first)["verdict"].startswith("no job")
    watcher.send_signal(signal.SIGINT)
    _, error = watcher.communicate(timeout=20)
    assert watcher.returncode == 130
    assert "Traceback" not in error


def test_a_reader_that_goes_away_is_no_error(folder, pond):
    with pond.batch() as batch:
        for number in range(3_000):
            batch.add_by_name("any", {"number": number}, queue="q")
    command = f"{sys.executable} -m millpond jobs --limit 3000 | head -n 1"
    ended = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.stdout.startswith("  id")
    assert ended.stderr == ""


def test_output_that_cannot_be_written_is_a_failure_in_one_line(folder, pond):
    with open("/dev/full", "w") as full:  # noqa: PTH123  a device, not a path of ours
        ended = subprocess.run(
            [sys.executable, "-m", "millpond", "status"],
            cwd=folder, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True,
            timeout=60, check=False,
        )  # fmt: skip
    assert ended.returncode == Code.FAILED
    assert ended.stderr == "error: No space left on device\n"


def test_what_the_encoding_of_the_output_lacks_is_shown_as_an_escape(process, pond):
    pond.enqueue("名", {}, queue="q")
    ended = process("jobs", PYTHONIOENCODING="latin-1")
    assert ended.returncode == 0
    assert "\\u540d" in ended.stdout


def test_help_imports_neither_the_store_nor_the_worker(folder):
    program = (
        "import sys; from millpond.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted(m for m in sys.modules if m.startswith(('sqlite3', 'millpond.store.sqlite',"
        " 'millpond.worker', 'millpond.demo', 'rich', 'asyncio'))))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert ended.stdout.splitlines()[-1] == "[]"


def terminal(folder, *arguments, **env):
    """Run a command whose standard streams are a terminal; return what it showed."""
    import pty

    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "millpond", *arguments],
        cwd=folder, env=environment(TERM="xterm", COLUMNS="120", **env),
        stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:  # a terminal whose last user has gone says so by an error
        pass
    os.close(ours)
    assert child.wait(timeout=30) == 0
    return shown.decode()


def test_colours_come_only_on_a_terminal_and_not_against_no_color(folder, process, pond):
    pond.enqueue("a", {}, queue="q")
    pond.cancel(1)
    assert "\x1b[" not in process("jobs").stdout
    assert "\x1b[" in terminal(folder, "jobs")
    assert "\x1b[" not in terminal(folder, "jobs", NO_COLOR="1")


def test_on_a_terminal_too_stored_text_does_nothing(folder, pond):
    pond.enqueue("\u202ea[red]x", {}, queue="q")
    shown = terminal(folder, "jobs")
    assert "\u202e" not in shown
    assert "\\u202ea[red]x" in shown


def test_python_m_millpond_is_the_command(process, folder):
    assert process("--version").stdout.startswith("millpond ")
