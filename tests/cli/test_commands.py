"""What the commands promise, run in this process on a real store."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from millpond import Millpond
from millpond.cli.exits import Code
from millpond.store import migrate

READING = [
    ("status",),
    ("jobs",),
    ("job", "1"),
    ("explain", "1"),
    ("cancel", "1"),
    ("queues",),
    ("queues", "pause", "mail"),
    ("workers",),
    ("verify",),
    ("reconcile",),
    ("migrate",),
]


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_a_command_that_reads_makes_no_store(run, folder, command):
    result = run(*command)
    assert result.exit_code == Code.FAILED
    assert f"there is no store at {folder}/millpond.db" in result.stderr
    assert "millpond init" in result.stderr
    assert not (folder / "millpond.db").exists()


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_a_command_that_reads_adds_no_tables_to_a_file_of_others(run, folder, command):
    with closing(sqlite3.connect("millpond.db")) as theirs:
        theirs.execute("CREATE TABLE orders (id INTEGER)")
    result = run(*command)
    assert result.exit_code == Code.FAILED
    assert "no tables of millpond" in result.stderr
    with closing(sqlite3.connect("millpond.db")) as theirs:
        assert theirs.execute("SELECT name FROM sqlite_schema").fetchall() == [("orders",)]


def test_a_store_in_memory_is_refused_by_commands_that_read(run, folder):
    result = run("status", "--url", ":memory:")
    assert result.exit_code == Code.FAILED
    assert "belongs to the process" in result.stderr


def test_a_file_that_is_no_database_is_one_clear_line(run, folder):
    Path("millpond.db").write_bytes(b"no database at all" * 100)
    result = run("status")
    assert result.exit_code == Code.FAILED
    assert "no SQLite database" in result.stderr
    assert "Traceback" not in result.output


# init and migrate


def test_init_makes_the_store_and_explains_the_settings(run, folder):
    result = run("init")
    assert result.exit_code == 0
    assert "made the store ./millpond.db, schema 1" in result.stdout
    assert "millpond worker app:pond" in result.stdout
    assert '#url = "./millpond.db"' in Path("millpond.toml").read_text()
    assert run("status").exit_code == 0


def test_init_leaves_settings_that_are_there(run, folder):
    Path("millpond.toml").write_text('[store]\nurl = "mine.db"\n')
    result = run("init")
    assert "left as it is" in result.stdout
    assert Path("millpond.toml").read_text() == '[store]\nurl = "mine.db"\n'
    assert Path("mine.db").exists()


def test_init_writes_the_address_it_was_given_so_that_all_commands_find_it(run, folder):
    assert run("init", "--url", 'odd "näme" 𝄞.db').exit_code == 0
    assert Path('odd "näme" 𝄞.db').exists()
    assert run("status").exit_code == 0
    assert not Path("millpond.db").exists()


def test_an_address_that_is_no_text_is_a_usage_error(run, folder):
    for command in ("init", "status", "doctor"):
        result = run(command, "--url", "\udcff.db")
        assert result.exit_code == Code.USAGE
        assert "no valid UTF-8" in result.stderr


def test_the_next_step_that_init_names_works_as_it_is_printed(run, folder, process):
    shown = run("init").stdout
    code = shown.partition("give it work:\n")[2].partition("    millpond worker")[0]
    (folder / "app.py").write_text(textwrap.dedent(code))
    assert "millpond worker app:pond\n    millpond enqueue hello name=world --app app:pond" in shown
    assert process("enqueue", "hello", "name=world", "--app", "app:pond").stdout == "1\n"
    assert "1 finished" in process("worker", "app:pond", "--drain").stderr


def test_init_twice_does_no_harm(ask, folder):
    assert ask("init") == {
        "store": "./millpond.db",
        "created": True,
        "applied": [1],
        "config": "millpond.toml",
        "config_written": True,
    }
    again = ask("init")
    assert (again["created"], again["applied"], again["config_written"]) == (False, [], False)


@pytest.fixture
def a_later_millpond(monkeypatch):
    """Let this code know one migration more than the file will have."""

    def later() -> None:
        known = migrate.load
        text = "-- Nothing much.\nCREATE TABLE millpond_later (id INTEGER) STRICT;\n"
        sha = hashlib.sha256(text.encode()).hexdigest()
        step = migrate.Migration(2, "later", text, sha)
        monkeypatch.setattr(migrate, "load", lambda folder: (*known(folder), step))

    return later


def test_an_older_schema_names_both_numbers_and_the_way_out_b34(run, pond, a_later_millpond):
    pond.close()
    a_later_millpond()
    for command in (("status",), ("enqueue", "send", "--queue", "mail", "--url", "millpond.db")):
        result = run(*command)
        assert result.exit_code == Code.SCHEMA
        assert "has schema 1" in result.stderr
        assert "needs schema 2" in result.stderr
        assert "millpond migrate" in result.stderr
    check = run("migrate", "--check")
    assert check.exit_code == Code.SCHEMA
    assert "the store has schema 1, this millpond knows 2" in check.stdout
    assert run("doctor").exit_code == Code.SCHEMA
    assert run("migrate").stdout.startswith("applied 2")
    assert run("migrate", "--check").exit_code == Code.OK
    assert run("status").exit_code == Code.OK


@pytest.mark.parametrize(("breaks_below", "code"), [(0, Code.OK), (2, Code.SCHEMA)])
def test_a_newer_schema_is_refused_only_when_it_says_so_b34(run, pond, breaks_below, code):
    pond.close()
    with closing(sqlite3.connect("millpond.db")) as newer:
        newer.execute(
            "INSERT INTO millpond_schema_version VALUES (2, 'later', ?, 0)", (breaks_below,)
        )
        newer.commit()
    for command in ("status", "migrate", "doctor"):
        assert run(command).exit_code == code
    result = run("status")
    assert ("schema 2" in result.stderr) is (code is Code.SCHEMA)


# enqueue and bulk


def test_enqueue_prints_the_id_and_nothing_else(run, pond):
    result = run("enqueue", "send", "to=ann", "--app", "app:pond")
    assert result.stdout == "1\n"
    assert pond.get(1).payload == {"to": "ann"}


def test_with_the_application_text_is_read_as_the_type_of_its_parameter(run, pond):
    assert run("enqueue", "send", "to=0042", "copies=3", "--app", "app:pond").exit_code == 0
    assert pond.get(1).payload == {"to": "0042", "copies": 3}


def test_without_it_json_is_json_and_the_rest_is_text(run, pond):
    pairs = ("a=1", "b=true", "c=[1,2]", "d=plain", 'e="7"', "f=NaN", "g=0042", "h=")
    assert run("enqueue", "any", *pairs, "--queue", "q", "--url", "millpond.db").exit_code == 0
    expected = {"a": 1, "b": True, "c": [1, 2], "d": "plain", "e": "7"}
    assert pond.get(1).payload == expected | {"f": "NaN", "g": "0042", "h": ""}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("send", "to=ann", "copies=many"), "args.copies"),
        (("send", "copies=1"), "args.to"),
        (("send", "to=ann", "colour=red"), "args.colour"),
        (("send", "--json", '{"to": 5}'), "args.to"),
        (("send", "--json", "[1]"), "mapping"),
        (("send", "--json", "{"), "not valid JSON"),
        (("send", "--json", '{"to": NaN}'), "nan"),
        (("send", "--json", '{"to": Infinity}'), "inf"),
        (("send", "--json", '{"to": 1e999}'), "inf"),
        (("send", "--json", '{"to": "\\ud800"}'), "U+D800"),
        (("send", "--json", '{"to": "a", "to": "b"}'), "twice"),
        (("send", "--json", "[" * 10_000 + "]" * 10_000), "nested deeper"),
        (("send", "--json", '{"to": "' + "x" * 1_100_000 + '"}'), "bytes"),
        (("send", "to=a", "--priority", str(2**63)), "priority"),
        (("send", "to=a", "--delay", "1e30"), "delay"),
        (("send", "to=a", "--delay", "-1"), "delay"),
        (("send", "to=a", "--at", "2030-01-31T08:00:00"), "no time zone"),
        (("send", "to=a", "--at", "tomorrow"), "is no time"),
        (("send", "to=a", "--key", "\udcff"), "no valid UTF-8"),
        (("send", "to=a", "--queue", "a/b"), "queue"),
        (("send", "to=a", "--meta", "[]"), "meta"),
        (("send", "to=a", "--json", "{}"), "not both"),
        (("send", "to=a", "to=b"), "twice"),
        (("send", "ann"), "name=value"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_place_and_writes_nothing_b31(
    run, pond, arguments, said
):
    result = run("enqueue", *arguments, "--app", "app:pond")
    assert result.exit_code == Code.USAGE
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert pond.jobs() == []


@pytest.mark.parametrize("text", ["2" * 30, "-0.0", '"2030-01-01"', "[[1]]", '"a\\u0000b"', "null"])
def test_json_that_is_accepted_comes_back_exactly_b31(run, pond, text):
    payload = json.dumps({"x": 0}).replace("0", text)
    result = run("enqueue", "any", "--json", payload, "--queue", "q", "--url", "millpond.db")
    if result.exit_code == 0:
        assert repr(pond.get(1).payload) == repr(json.loads(payload))
    else:
        assert result.exit_code == Code.USAGE
        assert pond.jobs() == []


def test_a_payload_is_read_from_standard_input(run, pond):
    result = run("enqueue", "send", "--json", "-", "--app", "app:pond", input='{"to": "ann"}')
    assert result.exit_code == 0
    assert pond.get(1).payload == {"to": "ann"}


def test_options_of_an_enqueue_reach_the_job(run, pond):
    options = (
        *("--queue", "reports", "--workload", "user", "--priority", "7", "--delay", "1h"),
        *("--key", "k", "--operation-id", "op", "--meta", '{"by": "me"}', "--max-attempts", "2"),
    )
    assert run("enqueue", "send", "to=a", "--app", "app:pond", *options).exit_code == 0
    job = pond.get(1)
    assert (job.queue, job.workload, job.priority) == ("reports", "user", 7)
    assert (job.key, job.operation_id, job.meta, job.max_attempts) == ("k", "op", {"by": "me"}, 2)
    assert job.state == "scheduled"


def test_the_same_key_gives_the_same_job_and_says_so(run, pond):
    first = run("enqueue", "send", "to=a", "--key", "k", "--app", "app:pond", "--print", "json")
    again = run("enqueue", "send", "to=a", "--key", "k", "--app", "app:pond")
    assert json.loads(first.stdout)["answer"] == "admitted"
    assert again.stdout == "1\n"
    assert "duplicate" in again.stderr


def test_an_unknown_task_is_not_found_and_the_closest_is_named(run, pond):
    run("enqueue", "send", "to=a", "--app", "app:pond")
    result = run("enqueue", "sned", "to=a", "--app", "app:pond")
    assert result.exit_code == Code.NOT_FOUND
    assert "did you mean 'send'?" in result.stderr


def test_a_store_that_nobody_named_is_not_made_by_an_enqueue(run, folder):
    result = run("enqueue", "send", "--queue", "mail")
    assert result.exit_code == Code.FAILED
    assert not (folder / "millpond.db").exists()


def test_a_store_that_somebody_named_is_made(run, folder):
    assert run("enqueue", "send", "--queue", "mail", "--url", "new.db").exit_code == 0
    assert (folder / "new.db").exists()


def test_what_is_typed_wins_over_the_environment(run, folder):
    run("init", "--url", "one.db")
    env = {"MILLPOND_URL": "two.db"}
    assert run("status", "--url", "one.db", env=env).exit_code == 0
    assert run("status", env=env).exit_code == Code.FAILED
    env = {"MILLPOND_APP": "app:pond"}
    assert run("enqueue", "send", "to=a", "--url", "one.db", env=env).exit_code == 0
    assert run("job", "1", "--url", "one.db").exit_code == 0


def test_an_option_has_a_twin_in_the_environment(run, pond):
    env = {"MILLPOND_ENQUEUE_QUEUE": "reports", "MILLPOND_APP": "app:pond"}
    assert run("enqueue", "send", "to=a", env=env).exit_code == 0
    assert pond.get(1).queue == "reports"
    assert json.loads(run("jobs", env={"MILLPOND_JSON": "1"}).stdout)["jobs"][0]["id"] == 1


def lines(*jobs):
    Path("jobs.jsonl").write_text("".join(f"{json.dumps(job)}\n" for job in jobs))
    return "jobs.jsonl"


def test_bulk_stores_every_line_with_its_options(run, pond):
    file = lines(
        {"task": "send", "payload": {"to": "a"}, "priority": 3, "at": "2099-01-01T00:00:00Z"},
        {"payload": {"number": 1}, "delay": "1h"},
    )
    result = run("bulk", file, "--task", "build", "--app", "app:pond")
    assert result.stdout == "2 lines: 2 admitted\n"
    assert [(job.task, job.priority, job.state) for job in pond.jobs()] == [
        ("build", 100, "scheduled"),
        ("send", 3, "scheduled"),
    ]


def test_a_bad_line_is_named_its_batch_is_left_out_and_what_came_before_stays(run, pond):
    good = [{"task": "send", "payload": {"to": str(n)}} for n in range(5)]
    file = lines(*good[:3], {"task": "send", "payload": {"to": 5}}, *good[3:])
    result = run("bulk", file, "--batch", "2", "--app", "app:pond")
    assert result.exit_code == Code.USAGE
    assert "line 4: send(args.to)" in result.stderr
    assert "nothing of lines 3 to 4 is stored" in result.stderr
    assert "--from-line 3" in result.stderr
    assert len(pond.jobs()) == 2


def test_a_bulk_can_be_sent_again_by_key_or_go_on_from_a_line(run, ask, pond):
    file = lines(*({"task": "send", "payload": {"to": "a"}, "key": str(n)} for n in range(4)))
    assert run("bulk", file, "--app", "app:pond").exit_code == 0
    assert ask("bulk", file, "--app", "app:pond")["answers"] == {"duplicate": 4}
    assert ask("bulk", file, "--app", "app:pond", "--from-line", "4")["lines"] == 1


def test_a_dry_run_checks_and_stores_nothing(run, pond):
    file = lines({"task": "send", "payload": {"to": "a"}})
    assert "1 checked" in run("bulk", file, "--dry-run", "--app", "app:pond").stdout
    assert pond.jobs() == []
    file = lines({"task": "send", "payload": {"to": 7}})
    assert run("bulk", file, "--dry-run", "--app", "app:pond").exit_code == Code.USAGE


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1]", "no JSON object"),
        ("{", "not valid JSON"),
        ('{"payload": {}}', "names no task"),
        ('{"task": "send", "payload": {"to": "a"}, "prio": 1}', "did you mean 'priority'?"),
        ('{"task": "send", "payload": 7}', "mapping"),
        ('{"task": "send", "payload": {"to": "a"}, "at": "soon"}', "is no time"),
        ('{"task": "sned"}', "did you mean 'send'?"),
        ('{"task": "send", "payload": {"to": "\\ud800"}}', "U+D800"),
    ],
)
def test_every_kind_of_bad_line_is_one_clear_message(run, pond, line, said):
    Path("jobs.jsonl").write_text(f"\n{line}\n")
    result = run("bulk", "jobs.jsonl", "--app", "app:pond")
    assert result.exit_code in {Code.USAGE, Code.NOT_FOUND}
    assert "line 2" in result.stderr
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert pond.jobs() == []


# looking


def test_status_names_queues_that_nobody_serves_b36(run, ask, pond):
    pond.enqueue("send", {"to": "a"}, queue="emials")
    assert run("status").stdout.splitlines()[0] == "emials: 1 ready, 0 workers serve it"
    told = ask("status")
    assert told["warnings"] == ["emials: 1 ready, 0 workers serve it"]
    assert told["queues"]["emials"]["ready"] == 1
    assert told["at"].endswith("Z")
    assert "emials: 1 ready, 0 workers serve it" in run("doctor").stdout


def test_a_list_loads_no_payload_and_shows_none(run, ask, pond):
    pond.enqueue("send", {"to": "the-body"}, queue="mail")
    assert "the-body" not in run("jobs").output
    (job,) = ask("jobs")["jobs"]
    assert "payload" not in job
    assert "result" not in job


def test_lists_are_read_in_pages(ask, pond):
    with pond.batch() as batch:
        for _ in range(5):
            batch.add_by_name("any", {}, queue="q")
    first = ask("jobs", "--limit", "3")
    assert [job["id"] for job in first["jobs"]] == [5, 4, 3]
    second = ask("jobs", "--limit", "3", "--before", str(first["next_before"]))
    assert [job["id"] for job in second["jobs"]] == [2, 1]
    assert second["next_before"] is None


def test_a_page_that_holds_the_last_that_fit_leads_no_further(ask, pond):
    with pond.batch() as batch:
        for task in ("old", "new", "new"):
            batch.add_by_name(task, {}, queue="q")
    page = ask("jobs", "task:new", "--limit", "2")
    assert [job["id"] for job in page["jobs"]] == [3, 2]
    assert page["next_before"] is None


def test_a_search_that_has_not_seen_everything_says_where_to_go_on(run, pond, monkeypatch):
    monkeypatch.setattr("millpond.store.upkeep.SCAN_ROWS", 3)
    monkeypatch.setattr("millpond.store.sqlite.views.SCAN_ROWS", 3)
    with pond.batch() as batch:
        for queue in ("rare", "q", "q", "q", "q"):
            batch.add_by_name("any", {}, queue=queue)
    first = run("jobs", "queue:rare")
    assert "no job fits" in first.stdout
    assert "--before 3" in first.stdout
    assert "rare" in run("jobs", "queue:rare", "--before", "3").stdout


def test_a_page_may_begin_at_any_number(ask, pond):
    pond.enqueue("a", {}, queue="q")
    assert len(ask("jobs", "--before", str(2**70))["jobs"]) == 1
    assert ask("jobs", "--before", "0")["jobs"] == []


def test_queries_narrow_the_list(ask, pond):
    pond.enqueue("a", {}, queue="q", key="report 812")
    pond.enqueue("b", {}, queue="q")
    assert [job["task"] for job in ask("jobs", "task:b")["jobs"]] == ["b"]
    assert [job["task"] for job in ask("jobs", 'key:"report 812"')["jobs"]] == ["a"]
    assert ask("jobs", "state:running")["jobs"] == []


@pytest.mark.parametrize("number", ["2", "0", str(2**63), str(2**70), "9" * 3_000])
@pytest.mark.parametrize("command", ["job", "explain"])
def test_an_id_that_no_job_has_is_not_found(run, pond, command, number):
    result = run(command, number)
    assert result.exit_code == Code.NOT_FOUND
    assert result.stderr.startswith("error: there is no job")
    assert len(result.stderr) < 400


@pytest.mark.parametrize("number", ["x", "1.5", "9" * 5_000, "\x1b[31m", "\u0661"])
def test_what_is_no_id_is_a_usage_error(run, pond, number):
    result = run("job", number)
    assert result.exit_code == Code.USAGE
    assert "\x1b" not in result.stderr


def test_a_job_shows_its_history_and_neutralises_what_it_holds(run, ask, folder, process):
    run("init")
    run("enqueue", "refuse", "password=hunter2", "--app", "app:pond")
    assert process("worker", "app:pond", "--drain").returncode == 0
    shown = run("job", "1")
    assert "ValueError: the server said \\x1b[31mno\\x07" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert "hunter2" not in shown.stdout
    assert "Traceback" in shown.stdout
    told = ask("job", "1")
    assert told["state"] == "failed"
    assert told["payload"] == {"password": "[redacted]"}
    assert told["history"][0]["outcome"] == "failed"
    assert ask("job", "1", "--reveal")["payload"] == {"password": "hunter2"}
    assert "\x1b" not in run("jobs").stdout
    assert "\x1b" not in run("job", "1", "--json").stdout


def test_names_that_hold_escapes_are_shown_as_such_and_escaped_in_json(run, pond):
    pond.enqueue("a", {"\x1b[2J": "\u202e\x9b"}, queue="q", key="\x1b]0;x\x07")
    for command in (("jobs",), ("job", "1"), ("jobs", "--json"), ("job", "1", "--json")):
        assert not set(run(*command).stdout) & set("\x1b\x07\x9b\u202e")


def test_following_a_final_job_ends_at_once_with_its_outcome(run, pond):
    pond.enqueue("a", {}, queue="q")
    pond.cancel(1)
    result = run("job", "1", "--follow")
    assert result.exit_code == Code.FAILED
    assert result.stdout.startswith("job 1 cancelled")


def test_explain_says_why_in_words_and_for_programs(run, ask, pond):
    pond.enqueue("send", {}, queue="mail", delay="1h")
    pond.pause("mail")
    assert [reason["code"] for reason in ask("explain", "1")["reasons"]] == [
        "not_due",
        "paused",
        "no_worker",
    ]
    assert "millpond queues resume mail" in run("explain", "1").stdout


# changing


def test_cancel_answers_for_each_job_and_ends_with_the_worst(run, ask, pond):
    pond.enqueue("a", {}, queue="q")
    assert ask("cancel", "1", "--by", "ann", "--note", "typo")["jobs"] == [
        {"id": 1, "answer": "cancelled"}
    ]
    assert pond.get(1).state == "cancelled"
    assert run("cancel", "1").stdout == "job 1: was cancelled before\n"
    result = run("cancel", "1", "99", str(2**70))
    assert result.exit_code == Code.NOT_FOUND
    assert "job 99: not found" in result.stdout


def test_a_completed_job_is_not_cancelled_and_that_is_a_failure(run, folder, process):
    run("enqueue", "send", "to=a", "--app", "app:pond")
    process("worker", "app:pond", "--drain")
    result = run("cancel", "1")
    assert result.exit_code == Code.FAILED
    assert "has completed before" in result.stdout


def test_a_queue_is_paused_and_resumed(run, ask, pond):
    pond.enqueue("a", {}, queue="q")
    assert ask("queues", "pause", "q") == {"queue": "q", "paused": True}
    assert ask("queues")["queues"][0] | {"ready": 1} == ask("queues")["queues"][0]
    assert ask("queues")["queues"][0]["paused"] is True
    assert run("status").stdout.startswith("q: 1 ready, 0 workers serve it; q is paused: 1 ready")
    assert run("queues", "resume", "q").exit_code == 0
    assert ask("queues")["queues"][0]["paused"] is False


def test_a_queue_of_a_task_is_paused_before_its_first_job(run, ask, folder):
    (folder / "one.py").write_text(
        "from millpond import Millpond\n"
        "pond = Millpond()\n"
        "@pond.task(queue='letters')\n"
        "def send(): ...\n"
        "@pond.task\n"
        "def other(): ...\n"
    )
    assert run("enqueue", "other", "--app", "one:pond").exit_code == 0
    assert ask("queues", "pause", "letters") == {"queue": "letters", "paused": True}
    assert [row["queue"] for row in ask("queues")["queues"] if row["paused"]] == ["letters"]


def test_the_store_may_be_named_before_the_subcommand(run, folder):
    with Millpond("other.db") as other:
        other.enqueue("a", {}, queue="q")
    env = {"MILLPOND_URL": "missing.db"}
    assert run("queues", "--url", "other.db", "pause", "q", env=env).exit_code == 0
    assert run("queues", "pause", "q", "--url", "other.db", env=env).exit_code == 0


def test_an_unknown_queue_is_not_found_and_the_closest_is_named(run, pond):
    pond.enqueue("a", {}, queue="emails")
    result = run("queues", "pause", "emials")
    assert result.exit_code == Code.NOT_FOUND
    assert "did you mean 'emails'?" in result.stderr
