"""The link: whatever is sent arrives, whole and in order, and no side waits for the other."""

from __future__ import annotations

import itertools
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worker.fakes import WAIT_S, claim

from millpond.worker.frames import (
    Begin,
    Drop,
    Dropped,
    End,
    Fed,
    Feed,
    Halt,
    Hello,
    Outcome,
    Progressed,
    Quit,
    Renewed,
    ToKeeper,
    ToRunner,
    Trouble,
)
from millpond.worker.link import MemoryLink, PipeLink, RunnerPipe, socket_pair

numbers = st.integers(0, 2**63 - 1)
lists = st.lists(numbers, max_size=5)
texts = st.text(max_size=40)

to_runner = st.one_of(
    st.builds(Begin, numbers, texts, st.just((4, 2)), st.none() | texts),
    st.builds(
        Feed,
        st.lists(
            st.builds(
                lambda number, body: Fed(number % 1000, 0, claim(number, payload=body)),
                numbers,
                st.binary(max_size=300),
            ),
            max_size=4,
        ),
    ),
    st.builds(Drop, st.none() | lists),
    st.builds(Halt, st.none() | lists, st.sampled_from(["cancelled", "timeout", "lease_lost"])),
    st.builds(Renewed, numbers),
    st.just(Quit()),
)
to_keeper = st.one_of(
    st.builds(Hello, numbers, texts, texts, st.binary(), st.binary(), st.binary()),
    st.builds(
        Outcome,
        claim=numbers,
        end=st.sampled_from(End),
        started_at=st.none() | numbers,
        ended_at=numbers,
        ran_us=numbers,
        result=st.none() | st.binary(max_size=100),
        reason=st.none() | texts,
        delay_ms=st.none() | numbers,
        trouble=st.none() | st.builds(Trouble, texts, texts, texts, texts),
    ),
    st.builds(Dropped, lists),
    st.builds(Progressed, st.lists(st.tuples(numbers, st.binary(max_size=20)), max_size=3)),
)


def fields(frames: list[ToKeeper] | list[ToRunner]) -> list[str]:
    return [repr(frame) for frame in frames]


@given(st.lists(to_runner, max_size=20))
def test_what_the_keeper_sends_arrives_in_order(frames: list[ToRunner]) -> None:
    ours, theirs = socket_pair()
    keeper, runner = PipeLink(ours), RunnerPipe(theirs, lambda: None)
    arrived: list[ToRunner] = []
    reader = threading.Thread(target=lambda: arrived.extend(runner.frames()))
    reader.start()
    for frame in frames:
        keeper.send(frame)
    while keeper.unsent:
        keeper.flush()
    keeper.close()
    reader.join(WAIT_S)
    runner.finish(WAIT_S)
    assert fields(arrived) == fields(frames)


@given(st.lists(to_keeper, max_size=20))
def test_what_the_runner_answers_arrives_in_order_and_before_the_end(
    frames: list[ToKeeper],
) -> None:
    ours, theirs = socket_pair()
    keeper, runner = PipeLink(ours), RunnerPipe(theirs, lambda: None)
    for frame in frames:
        runner.answer(frame)
    runner.finish(WAIT_S)
    arrived: list[ToKeeper] = []
    while not keeper.ended:
        arrived += keeper.receive()
    keeper.close()
    assert fields(arrived) == fields(frames)


@given(st.lists(to_keeper, min_size=1, max_size=5), st.lists(st.integers(1, 200), min_size=1))
def test_messages_survive_any_cut(frames: list[ToKeeper], cuts: list[int]) -> None:
    source, raw = socket.socketpair()
    runner = RunnerPipe(source, lambda: None)
    for frame in frames:
        runner.answer(frame)
    runner.finish(WAIT_S)
    with raw:
        whole = b"".join(iter(lambda: raw.recv(1 << 20), b""))
    ours, theirs = socket.socketpair()
    keeper = PipeLink(ours)
    arrived: list[ToKeeper] = []
    with theirs:
        for cut in itertools.cycle(cuts):
            theirs.sendall(whole[:cut])
            whole = whole[cut:]
            arrived += keeper.receive()
            if not whole:
                break
    keeper.close()
    assert fields(arrived) == fields(frames)


def test_the_keeper_never_waits_for_a_runner_that_does_not_read() -> None:
    ours, theirs = socket_pair()
    keeper = PipeLink(ours)
    frames = [Feed([Fed(0, 0, claim(number, payload=b"x" * 500_000))]) for number in range(1, 21)]
    for frame in frames:
        keeper.send(frame)
    assert keeper.unsent
    runner = RunnerPipe(theirs, lambda: None)
    arrived: list[ToRunner] = []
    reader = threading.Thread(target=lambda: arrived.extend(runner.frames()))
    reader.start()
    while keeper.unsent:
        keeper.flush()
    keeper.close()
    reader.join(WAIT_S)
    runner.finish(WAIT_S)
    assert [frame.jobs[0].claim.token.claim for frame in arrived if isinstance(frame, Feed)] == [
        *range(1, 21)
    ]


def test_a_runner_without_keeper_is_told_so() -> None:
    ours, theirs = socket_pair()
    gone = threading.Event()
    runner = RunnerPipe(theirs, gone.set)
    ours.close()
    runner.answer(Dropped([1]))
    assert gone.wait(WAIT_S)
    assert list(runner.frames()) == []
    runner.finish(WAIT_S)


def test_sending_over_an_ended_link_does_nothing() -> None:
    ours, theirs = socket_pair()
    keeper = PipeLink(ours)
    theirs.close()
    keeper.send(Quit())
    while not keeper.ended:
        keeper.receive()
    keeper.send(Quit())
    assert not keeper.unsent
    keeper.close()


@pytest.mark.parametrize("rubbish", [b"\xff\xff\xff\xff garbage", b"\0\0\0\3abc"])
def test_a_link_that_is_out_of_step_has_ended(rubbish: bytes) -> None:
    ours, theirs = socket_pair()
    with theirs:
        keeper = PipeLink(ours)
        theirs.sendall(rubbish)
        while not keeper.ended:
            assert keeper.receive() == []
        keeper.close()


def test_the_memory_link_hands_frames_on_as_they_are() -> None:
    rung: list[int] = []
    link = MemoryLink(lambda: rung.append(1))
    got: list[ToRunner] = []
    link.connect(got.append)
    sent = Feed([Fed(0, 0, claim(1))])
    link.send(sent)
    assert got[0] is sent
    answer = Dropped([1])
    link.answer(answer)
    assert rung == [1]
    assert link.receive()[0] is answer
    link.close()
    link.send(Quit())
    assert len(got) == 1


@given(st.lists(to_keeper, min_size=1, max_size=20))
def test_a_prompt_runner_has_told_the_keeper_when_it_goes_on(frames: list[ToKeeper]) -> None:
    ours, theirs = socket_pair()
    keeper, runner = PipeLink(ours), RunnerPipe(theirs, lambda: None, prompt=True)
    for frame in frames:
        runner.answer(frame)
        assert fields(keeper.receive()) == fields([frame])
    runner.finish(WAIT_S)
    assert keeper.receive() == []
    assert keeper.ended
    keeper.close()


def test_a_prompt_runner_without_keeper_is_told_so() -> None:
    ours, theirs = socket_pair()
    gone: list[bool] = []
    runner = RunnerPipe(theirs, lambda: gone.append(True), prompt=True)
    ours.close()
    runner.answer(Dropped([1]))
    assert gone == [True]
    runner.finish(WAIT_S)
