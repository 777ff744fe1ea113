from __future__ import annotations

import pytest

from millpond.cli.query import TOKENS, BadQuery, parse
from millpond.model import JobFilter, State


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], JobFilter()),
        (["state:failed"], JobFilter(state=State.FAILED)),
        (["state:failed queue:reports"], JobFilter(state=State.FAILED, queue="reports")),
        (["state:failed", "queue:reports"], JobFilter(state=State.FAILED, queue="reports")),
        (['key:"report 812"'], JobFilter(key="report 812")),
        (["key:report 812"], JobFilter(key="report 812")),
        (["key:report:812"], JobFilter(key="report:812")),
        (['key:"a \\"b\\" c"'], JobFilter(key='a "b" c')),
        (["operation:pay-1"], JobFilter(operation_id="pay-1")),
        (["task:a workload:b"], JobFilter(task="a", workload="b")),
    ],
)
def test_tokens_narrow_the_list(words, found):
    assert parse(words) == found


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["age:>1h"], JobFilter(created_before=6_400_000)),
        (["age:1h"], JobFilter(created_before=6_400_000)),
        (["age:<1h30m"], JobFilter(created_after=4_600_000)),
        (["ended:<10s"], JobFilter(finished_after=9_990_000)),
        (["ended:>10s age:<1h age:>1m"],
         JobFilter(finished_before=9_990_000, created_after=6_400_000, created_before=9_940_000)),
        (['error:"time out"'], JobFilter(error="time out")),
    ],
)  # fmt: skip
def test_ages_are_counted_back_from_now(words, found):
    assert parse(words, now=10_000_000) == found


def test_every_token_sets_a_field_of_the_filter():
    fields = {field for field, _ in TOKENS.values()}
    assert fields <= set(JobFilter.__dataclass_fields__)
    assert len(fields) == len(TOKENS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stat:failed"], "did you mean state:?"),
        (["args.user:7"], "knows no token args.user"),
        (["colour:red"], "There are state:, queue:"),
        (["age:old"], "no length of time"),
        (["ended:<"], "no length of time"),
        (["age:>1h age:2h"], "is there twice"),
        (["state:faild"], "did you mean failed?"),
        (["failed"], "is no token"),
        (["812"], "millpond job 812"),
        (["state:failed state:ready"], "is there twice"),
        (["\x1b[31m:x"], "\\x1b"),
        (["queue:"], "is no token"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_the_way_out(words, said):
    with pytest.raises(BadQuery) as refused:
        parse(words)
    assert said in refused.value.message
