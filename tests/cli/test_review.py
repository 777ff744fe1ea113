"""Review by the command line alone: failures, retry, discard, cancel (R20, B25)."""

from __future__ import annotations

import json
import os
import pty
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond import Millpond, State
from millpond.policy import admission

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


@pytest.fixture
def app(run, folder: Path) -> Iterator[Millpond]:
    """The application of the working folder with three failed jobs, one completed, one waiting."""
    for word in ("a", "b", "c"):
        assert run("enqueue", "refuse", f"password={word}", "--app", "app:pond").exit_code == 0
    assert run("enqueue", "send", "to=ann", "--app", "app:pond").exit_code == 0
    import app as loaded

    with loaded.pond:
        loaded.pond.drain()
        loaded.build.using(delay="1h").enqueue(1)
        yield loaded.pond


def states(pond: Millpond) -> list[str]:
    return [job.state.value for job in reversed(pond.jobs())]


# --- one job ------------------------------------------------------------------------------------


def test_an_operator_puts_a_job_back_and_history_tells_so(app: Millpond, run, ask) -> None:
    """B25 by the command line."""
    result = run("retry", "1", "--by", "ann", "--note", "server is back", "--attempts", "2")
    assert (result.exit_code, result.stdout) == (0, "job 1: put back\n")
    assert app.get(1).max_attempts == 3
    app.drain()
    told = ask("job", "1")
    assert [entry["outcome"] for entry in told["history"]] == ["failed", "retried"]
    assert [(e["who"], e["what"], e["note"]) for e in told["events"]] == [
        ("ann", "requeue", "server is back")
    ]
    shown = run("job", "1").stdout
    assert re.search(r"requeued by ann \d+ \w+ ago: server is back", shown)


def test_a_corrected_payload_is_held_to_the_function_where_it_is_known(app, run, ask) -> None:
    wrong = run("retry", "4", "--payload", '{"too": 1}', "--app", "app:pond")
    assert wrong.exit_code == 2
    assert "too" in wrong.stderr
    assert ask("job", "4")["state"] == "completed"
    right = run("retry", "4", "--payload", '{"to": "bob", "copies": 2}', "--app", "app:pond")
    assert right.exit_code == 0, right.output
    app.drain()
    assert app.get(4).result == "sent 2 to bob"


@pytest.mark.parametrize(
    ("payload", "said"),
    [("[1]", "one JSON object"), ("{", "payload"), ('{"a": NaN}', "payload")],
)
def test_a_payload_that_is_no_object_is_refused(app, run, payload: str, said: str) -> None:
    result = run("retry", "1", "--payload", payload)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_payload_may_come_from_standard_input(app, run, ask) -> None:
    assert run("retry", "1", "--payload", "-", input='{"password": "x"}').exit_code == 0
    assert ask("job", "1", "--reveal")["payload"] == {"password": "x"}


def test_secrets_in_events_are_hidden_like_those_in_jobs(app, run, ask) -> None:
    run("retry", "1", "--payload", '{"password": "hunter2"}')
    assert "hunter2" not in run("job", "1", "--json").stdout
    assert ask("job", "1", "--reveal")["events"][0]["after"]["payload"] == {"password": "hunter2"}


def test_a_delay_and_a_new_operation_are_taken(app, run, ask) -> None:
    assert run("retry", "1", "--delay", "1h", "--operation-id", "other").exit_code == 0
    told = ask("job", "1")
    assert (told["state"], told["operation_id"]) == ("scheduled", "other")


@pytest.mark.parametrize("command", ["retry", "discard"])
def test_jobs_that_are_not_final_or_not_there_are_told_with_their_exit_code(
    app: Millpond, run, command: str
) -> None:
    result = run(command, "5")
    assert (result.exit_code, result.stdout) == (
        1, "job 5: is scheduled: nothing was done; cancel it first, or wait\n"
    )  # fmt: skip
    result = run(command, "5", "1", "99", str(10**40))
    assert result.exit_code == 4
    assert "job 99: not found" in result.stdout
    assert "job 1: put back" in result.stdout or "job 1: discarded" in result.stdout


def test_a_discarded_job_is_gone(app: Millpond, run, ask) -> None:
    assert ask("discard", "1", "--by", "ann") == {"jobs": [{"id": 1, "answer": "discarded"}]}
    assert run("job", "1").exit_code == 4
    assert app.events(what="discard")[0].who == "ann"


def test_without_a_name_the_user_is_the_operator(app: Millpond, run, monkeypatch) -> None:
    monkeypatch.setenv("LOGNAME", "carol")
    run("retry", "1")
    monkeypatch.setenv("MILLPOND_BY", "dave")
    run("retry", "2")
    assert [event.who for event in app.events()] == ["dave", "carol"]


# --- many jobs ----------------------------------------------------------------------------------


def test_a_query_without_yes_counts_and_shows_and_changes_nothing(app: Millpond, run) -> None:
    before = states(app)
    result = run("retry", "--where", "queue:mail")
    assert result.exit_code == 0, result.output
    assert "3 failed jobs would be put back; nothing was changed" in result.stdout
    assert re.findall(r"^ *(\d+)  refuse", result.stdout, re.MULTILINE) == ["3", "2", "1"]
    assert "--yes --pinned 5@" in result.stdout
    assert states(app) == before


def test_yes_does_it_to_just_those_that_were_shown(app: Millpond, run, ask) -> None:
    shown = ask("retry", "--where", "queue:mail")
    assert (shown["count"], shown["done"]) == (3, 0)
    assert [job["id"] for job in shown["sample"]] == [3, 2, 1]
    assert run("enqueue", "refuse", "--app", "app:pond").exit_code == 0
    app.drain()
    assert app.get(6).state is State.FAILED
    done = ask("retry", "--where", "queue:mail", "--yes", "--pinned", shown["pinned"])
    assert (done["count"], done["done"], done["left"]) == (3, 3, {})
    assert states(app) == ["ready"] * 3 + ["completed", "scheduled", "failed"]
    again = ask("retry", "--where", "queue:mail", "--yes", "--pinned", shown["pinned"])
    assert again["count"] == 0


def test_a_dry_run_wins_over_yes(app: Millpond, run) -> None:
    before = states(app)
    for command in ("retry", "discard"):
        assert run(command, "--where", "queue:mail", "--yes", "--dry-run").exit_code == 0
        assert "nothing was changed" in run(command, "1", "--dry-run").stdout
    assert run("cancel", "--where", "queue:reports", "--yes", "--dry-run").exit_code == 0
    assert states(app) == before


def test_a_spread_keeps_the_retry_from_being_a_storm(app: Millpond, run, ask) -> None:
    assert ask("retry", "--where", "queue:mail", "--yes", "--spread", "30m")["done"] == 3
    dues = sorted(app.get(job).due_at for job in (1, 2, 3))
    assert (dues[2] - dues[0]).total_seconds() > 600


def test_the_query_chooses_the_state_and_failed_is_the_usual_one(app: Millpond, run, ask) -> None:
    assert ask("discard", "--where", "queue:mail", "--dry-run")["count"] == 3
    assert ask("discard", "--where", "state:completed", "--yes")["done"] == 1
    assert run("job", "4").exit_code == 4
    refused = run("retry", "--where", "state:ready")
    assert refused.exit_code == 2
    assert "not ready" in refused.stderr
    assert run("cancel", "--where", "state:failed").exit_code == 2


def test_a_kind_of_error_is_put_back_as_failures_shows_it(app: Millpond, run, ask) -> None:
    (group,) = ask("failures")["groups"]
    assert (group["task"], group["count"], group["error_type"]) == ("refuse", 3, "ValueError")
    shown = run("failures").stdout
    command = re.search(r"put a group back:  millpond (retry --where \S+)", shown)
    assert command
    assert "\x1b" not in shown
    assert ask(*command[1].split(), "--yes")["done"] == 3
    assert run("failures").stdout == "no job has failed, of those that are kept\n"


def test_cancel_takes_a_query_of_jobs_that_wait(app: Millpond, run, ask) -> None:
    shown = ask("cancel", "--where", "queue:reports")
    assert (shown["count"], shown["done"]) == (1, 0)
    result = run("cancel", "--where", "queue:reports", "--yes", "--by", "ann")
    assert result.stdout == "1 of 1 job cancelled or asked to stop\n"
    assert app.get(5).state is State.CANCELLED
    assert app.events(5)[0].who == "ann"


def test_what_is_refused_by_admission_ends_with_3_and_says_how_to_go_on(
    app: Millpond, run, monkeypatch
) -> None:
    from millpond import Overloaded

    def decide(wanted: admission.Wanted, capacity: admission.Capacity) -> admission.Admitted:
        if capacity.n_jobs + wanted.jobs > 2:
            raise Overloaded(
                "queue mail is full", reason="queue_full", queue="mail", workload="default",
                retry_after=3.2,
            )  # fmt: skip
        return admission.Admitted(wanted.jobs, wanted.bytes)

    with monkeypatch.context() as patched:
        patched.setattr(admission, "decide", decide)
        result = run("retry", "--where", "queue:mail", "--yes")
        assert run("retry", "3").exit_code == 3
    assert result.exit_code == 3
    assert "2 of 3 jobs had their turn and were put back" in result.stderr
    assert "queue mail is full" in result.stderr
    assert "retry after 4 s" in result.stderr
    pinned = re.search(r"--pinned (\S+)", result.stderr)
    assert pinned
    again = run("retry", "--where", "queue:mail", "--yes", "--pinned", pinned[1])
    assert again.stdout == "1 of 1 job put back\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("retry",),
        ("retry", "1", "--where", "queue:mail"),
        ("retry", "1", "2", "--payload", "{}"),
        ("retry", "--where", "queue:mail", "--payload", "{}"),
        ("retry", "--where", "queue:mail", "--delay", "5"),
        ("retry", "1", "--spread", "5"),
        ("retry", "1", "--pinned", "1@2"),
        ("retry", "1", "--attempts", "0"),
        ("retry", "1", "--delay", "soon"),
        ("retry", "--where", "queue:mail", "--spread", "soon", "--yes"),
        ("retry", "--where", "queue:mail", "--pinned", "x"),
        ("discard", "--where", "colour:red"),
        ("discard",),
        ("cancel",),
        ("cancel", "x"),
        ("failures", "--limit", "0"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error_and_changes_nothing(
    app: Millpond, run, arguments: tuple[str, ...]
) -> None:
    before = states(app)
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert "error:" in result.stderr.lower()
    assert states(app) == before


@pytest.mark.parametrize("command", ["retry", "discard", "cancel"])
def test_a_query_that_finds_nothing_is_no_failure(app: Millpond, run, command: str) -> None:
    result = run(command, "--where", "task:nothing", "--yes")
    assert (result.exit_code, result.stdout[:4]) == (0, "0 of")
    assert "nothing to do" in run(command, "--where", "task:nothing").stdout


def test_on_a_terminal_long_work_shows_a_bar(app: Millpond, folder: Path, start) -> None:
    import subprocess
    import sys

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "millpond", "retry", "--where", "queue:mail", "--yes"]
    done = subprocess.run(
        command, cwd=folder, stderr=theirs, stdout=subprocess.PIPE, timeout=60, check=True
    )
    os.close(theirs)
    shown = os.read(ours, 65_536).decode()
    os.close(ours)
    assert "3/3" in shown
    assert done.stdout == b"3 of 3 jobs put back\n"


def test_the_page_of_the_command_line_has_every_option_of_the_contract() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for command in ("retry", "discard", "cancel"):
        section = text.partition(f"### millpond {command}\n")[2].partition("\n### ")[0]
        for name in ("--where", "--yes", "--dry-run", "--by", "--note", "--json"):
            assert name in section, (command, name)
    assert "--spread" in text


def test_json_is_one_object_with_times_in_rfc_3339(app: Millpond, run) -> None:
    for arguments in (("failures",), ("retry", "--where", "queue:mail"), ("discard", "1")):
        found = json.loads(run(*arguments, "--json").stdout)
        assert isinstance(found, dict)
    shown = run("failures", "--json", "--limit", "1").stdout
    assert re.search(r'"last_at": "\d{4}-\d\d-\d\dT[\d:]+\.\d{3}Z"', shown)
