"""`millpond events`, and what `millpond job` tells of what people did."""

from __future__ import annotations

import pytest

from millpond.cli.exits import Code


@pytest.fixture
def failed(pond):
    """Two jobs that cannot be run, ended."""
    ids = [pond.enqueue("send", {"to": to, "password": "abc"}, queue="mail").id for to in "xy"]
    for job_id in ids:
        pond.cancel(job_id, by="eve")
    return ids


def test_events_tell_who_did_what_and_why_newest_first(run, failed, pond):
    pond.pause("mail", by="bob")
    assert run("retry", str(failed[0]), "--by", "ann", "--note", "try again").exit_code == Code.OK
    assert run("discard", str(failed[1]), "--by", "ann", "--note", "too old").exit_code == Code.OK
    lines = run("events").output.splitlines()
    assert lines[0].split() == ["event", "when", "who", "what", "to", "why"]
    told = [" ".join(line.split()[-6:]) for line in lines[1:]]
    assert told[0].endswith(f"ann discard job {failed[1]} too old")
    assert told[1].endswith(f"ann requeue job {failed[0]} try again")
    assert told[2].endswith("bob pause queue mail")
    assert [line.split()[-3] for line in lines[4:]] == ["cancel"], "those of a discarded job go"


def test_events_are_narrowed_to_a_job_a_queue_or_a_kind(ask, run, failed, pond):
    pond.pause("mail", by="bob")
    assert [one["which"] for one in ask("events", str(failed[0]))["events"]] == [str(failed[0])]
    assert [one["what"] for one in ask("events", "--queue", "mail")["events"]] == ["pause"]
    assert len(ask("events", "--what", "cancel")["events"]) == 2
    assert run("events", str(failed[0]), "--queue", "mail").exit_code == Code.USAGE
    assert run("events", "--what", "nothing").exit_code == Code.USAGE


def test_events_are_read_in_pages(ask, failed):
    first = ask("events", "--limit", "1")
    (newest,) = first["events"]
    assert first["next_before"] == newest["id"]
    second = ask("events", "--limit", "1", "--before", str(newest["id"]))
    assert second["events"][0]["id"] < newest["id"]
    assert second["next_before"] is None


def test_a_store_in_which_nobody_did_anything_says_so(run, pond):
    pond.enqueue("send", {}, queue="mail")
    assert run("events").output == "nobody has done anything, of what is kept\n"


def test_a_discarded_job_is_told_from_one_that_never_was(run, failed):
    run("discard", str(failed[0]), "--by", "ann", "--note", "too old")
    gone = run("job", str(failed[0]))
    assert gone.exit_code == Code.NOT_FOUND
    assert f"there is no job {failed[0]} any more: discarded by ann" in gone.stderr
    assert "too old" in gone.stderr
    never = run("job", "4711")
    assert never.exit_code == Code.NOT_FOUND
    assert "never existed" in never.stderr


def test_a_corrected_job_shows_what_its_arguments_were_without_its_secrets(run, failed):
    job = str(failed[0])
    assert run("retry", job, "--payload", '{"to": "ann"}', "--by", "ann").exit_code == Code.OK
    shown = run("job", job).output
    assert 'its arguments were {"to": "x", "password":' in shown
    assert "abc" not in shown
    assert '"password": "abc"' in run("job", job, "--reveal").output


def test_arguments_that_are_no_json_are_answered_with_the_form(run, failed):
    answer = run("retry", str(failed[0]), "--payload", "to=ann")
    assert answer.exit_code == Code.USAGE
    assert "give the arguments as one JSON object, such as" in answer.stderr
