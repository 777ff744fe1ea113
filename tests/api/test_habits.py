"""Habits from other queues are answered with what to write here."""

from __future__ import annotations

import asyncio
import copy
import pickle
from typing import Any

import pytest

from millpond import BadConfig, JobRef, Millpond, Task


@pytest.fixture
def mail(pond: Millpond) -> Task[..., Any, Any]:
    @pond.task
    def mail(to: str) -> str:
        return to

    return mail


@pytest.fixture
def ref(mail: Task[..., Any, Any]) -> JobRef[Any]:
    return mail.enqueue("ann")


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("delay", "mail.enqueue(...)"),
        ("apply_async", "mail.using(delay=..., queue=...).enqueue(...)"),
        ("send", "mail.enqueue(...)"),
        ("kiq", "await mail.aenqueue(...)"),
        ("s", "mail.enqueue(...): there are no chains"),
    ],
)
def test_a_method_of_another_queue_is_answered_with_ours(
    mail: Task[..., Any, Any], name: str, write: str
) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}': write ") as caught:
        getattr(mail, name)
    assert write in str(caught.value)
    with pytest.raises(AttributeError, match="write "):
        getattr(mail.using(priority=1), name)


@pytest.mark.parametrize(
    ("name", "write"),
    [("result", "ref.wait()"), ("get", "ref.wait()"), ("state", "ref.job().state")],
)
def test_a_result_object_of_another_queue_is_answered_with_ours(
    ref: JobRef[Any], name: str, write: str
) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(ref, name)
    assert write in str(caught.value)


def test_what_nobody_has_is_a_plain_attribute_error(
    mail: Task[..., Any, Any], ref: JobRef[Any]
) -> None:
    objects: list[Any] = [mail, mail.using(), ref]
    for each in objects:
        with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
            each.nonsense  # noqa: B018
        assert not hasattr(each, "nonsense")
        assert not hasattr(each, "__fspath__")


def test_refs_and_tasks_can_still_be_copied_and_a_half_made_one_fails_plainly(
    mail: Task[..., Any, Any], ref: JobRef[Any]
) -> None:
    assert copy.copy(mail).name == "mail"
    assert copy.copy(ref) == ref
    with pytest.raises(AttributeError):
        Task.__new__(Task).name  # noqa: B018
    with pytest.raises(Exception, match="pickle"):
        pickle.dumps(ref)


def test_awaiting_an_enqueue_says_that_the_job_is_stored_and_what_to_await(
    pond: Millpond, mail: Task[..., Any, Any]
) -> None:
    async def habit() -> None:
        await mail.enqueue("ann")  # type: ignore[misc]

    with pytest.raises(TypeError, match=r"job 1 is stored.*await task\.aenqueue"):
        asyncio.run(habit())
    assert len(pond.jobs()) == 1


def test_a_task_where_a_name_belongs_is_answered_with_both_ways(
    pond: Millpond, mail: Task[..., Any, Any]
) -> None:
    both = r'pond\.enqueue\("mail", \{\.\.\.\}\); with the task at hand write mail\.enqueue'
    calls: list[tuple[Any, ...]] = [(mail, "ann"), (mail,), (mail, {"to": "ann"})]
    for arguments in calls:
        with pytest.raises(TypeError, match=both):
            pond.enqueue(*arguments)
        with pytest.raises(TypeError, match=both):
            asyncio.run(pond.aenqueue(*arguments))
    assert pond.jobs() == []


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"retries": 3}, "retries=3 is max_attempts=4"),
        ({"max_retries": 3}, "max_attempts="),
        ({"autoretry_for": (OSError,)}, "retry_on="),
        ({"time_limit": 3}, "timeout="),
        ({"retried": 3}, "there is no option 'retried'"),
    ],
)
def test_an_option_of_another_queue_is_answered_with_ours(
    pond: Millpond, option: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadConfig) as caught:
        pond.task(**option)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("option", "said"), [("countdown", "delay="), ("eta", "at="), ("task_id", "operation_id=")]
)
def test_an_enqueue_option_of_another_queue_is_answered_with_ours(
    mail: Task[..., Any, Any], option: str, said: str
) -> None:
    with pytest.raises(BadConfig) as caught:
        mail.bind({option: 3})
    assert said in str(caught.value)
