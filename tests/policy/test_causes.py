from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from millpond.policy.causes import Cause, CauseState, Flow, failure, next_cause

QUIET = Flow(0, 0, 35_000, 10.0, 10.0, slots=4)
GROWING = Flow(500, 520, 35_000, 50.0, 10.0, slots=4)
EASING = Flow(500, 520, 35_000, 5.0, 10.0, slots=4)


class Watch:
    def __init__(self) -> None:
        self.state = CauseState()
        self.now = 0
        self.told: list[tuple[int, str, str]] = []

    def look(self, flow: Flow, looks: int = 1, step: int = 1_000) -> Watch:
        for _ in range(looks):
            self.state, change = next_cause(self.state, flow, self.now)
            if change is not None:
                self.told.append((self.now // 1_000, change.after.value, change.detail))
            self.now += step
        return self

    @property
    def names(self) -> list[str]:
        return [name for _, name, _ in self.told]


flows = st.builds(
    Flow,
    eligible=st.integers(0, 60_000),
    outstanding=st.integers(0, 60_000),
    bearable=st.just(35_000),
    offered=st.floats(0, 500),
    drained=st.floats(0, 500),
    expected=st.none() | st.floats(0, 500),
    ended=st.floats(0, 500),
    running=st.integers(0, 8),
    slots=st.none() | st.integers(0, 4),
    bad=st.none() | st.floats(0, 1),
    closed=st.none() | st.just("api"),
)


@given(st.lists(st.tuples(flows, st.integers(1, 20)), max_size=20))
def test_a_cause_follows_only_from_what_was_seen(course: list[tuple[Flow, int]]) -> None:
    watch = Watch()
    for flow, seconds in course:
        before = watch.state
        watch.look(flow, 1)
        if watch.state.cause is Cause.FAILURE and before.cause is not Cause.FAILURE:
            assert failure(flow) is not None
        if watch.state.cause is Cause.RECOVERING:
            assert flow.eligible > flow.drained
        watch.look(flow, seconds)


@given(flows)
def test_the_same_flow_leads_to_one_cause_that_stays(flow: Flow) -> None:
    watch = Watch().look(flow, 300, step=5_000)
    told = len(watch.told)
    if watch.state.cause is not Cause.SPIKE:
        assert len(watch.look(flow, 100, step=5_000).told) == told


def test_a_burst_that_the_queue_can_bear_is_a_spike_and_then_recovers() -> None:
    watch = Watch().look(QUIET, 5).look(GROWING, 60).look(EASING, 30).look(QUIET, 5)
    assert watch.names == ["spike", "recovering", "steady"]


def test_growth_that_could_not_last_as_long_again_is_sustained() -> None:
    watch = Watch()
    for second in range(1_000):
        held = 40 * second
        watch.look(replace(GROWING, eligible=held, outstanding=held))
    assert [name for _, name, _ in watch.told] == ["spike", "sustained"]
    # Held so far plus as much again passes 35,000 after 437.5 seconds.
    assert watch.told[-1][0] in range(437, 441)


def test_a_moment_of_ease_ends_neither_growth_nor_its_name() -> None:
    watch = Watch().look(GROWING, 30).look(EASING, 4).look(GROWING, 30)
    assert watch.names == ["spike"]


def test_sustained_overload_stays_named_until_it_eases() -> None:
    full = replace(GROWING, eligible=34_000, outstanding=34_990)
    watch = Watch().look(full, 10).look(replace(full, outstanding=1_000), 20)
    assert watch.state.cause is Cause.SUSTAINED


def test_a_few_jobs_that_wait_have_no_name() -> None:
    assert Watch().look(replace(GROWING, eligible=34), 60).told == []


def test_no_workers_is_a_failure_after_five_seconds() -> None:
    gone = replace(QUIET, eligible=3, slots=0)
    assert Watch().look(gone, 10).told == [(5, "failure", "no_workers")]
    assert Watch().look(replace(gone, eligible=0), 60).told == []


def test_a_resource_that_is_closed_or_attempts_that_end_badly_are_a_failure() -> None:
    closed = replace(QUIET, eligible=3, closed="api")
    assert Watch().look(closed, 10).told == [(5, "failure", "resource(api)")]
    assert Watch().look(replace(QUIET, eligible=3, bad=0.6), 10).told == [
        (5, "failure", "resource")
    ]
    assert Watch().look(replace(QUIET, eligible=3, bad=0.5), 60).told == []


def test_full_slots_of_which_nothing_comes_hang() -> None:
    hung = replace(QUIET, eligible=50, running=4, expected=10.0, ended=0.0)
    assert Watch().look(hung, 10).told == [(5, "failure", "hung")]
    for other in (
        replace(hung, running=3),
        replace(hung, ended=3.0),
        replace(hung, expected=None),
        replace(hung, slots=None),
    ):
        assert Cause.FAILURE not in Watch().look(other, 60).names


def test_a_failure_is_never_called_sustained_and_the_way_back_is_recovering() -> None:
    """S2c: work comes in while nothing ends; then it ends faster than it comes in."""
    watch = Watch().look(QUIET, 5)
    for second in range(1_200):
        held = 50 * second
        watch.look(Flow(held, held, 35_000, 50.0, 0.0, slots=0))
    watch.look(EASING, 60).look(QUIET, 5)
    assert watch.names == ["spike", "failure", "recovering", "steady"]


def test_growth_after_a_failure_must_show_for_five_seconds() -> None:
    watch = Watch().look(replace(QUIET, eligible=50, slots=0), 10)
    watch.look(EASING, 10).look(GROWING, 4)
    assert watch.state.cause is Cause.RECOVERING
    assert watch.look(GROWING, 4).state.cause is Cause.SPIKE
