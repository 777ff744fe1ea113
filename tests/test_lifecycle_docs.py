from __future__ import annotations

import re
from pathlib import Path

from millpond.model import AttemptOutcome, State
from millpond.policy.ending import Held, ending
from millpond.policy.lifecycle import TRANSITIONS, Event, is_charged

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "states.md"
EDGES = {
    (source, event, target)
    for (source, event), targets in TRANSITIONS.items()
    for target in targets
}


def drawn() -> list[tuple[State | None, Event, State]]:
    (diagram,) = re.findall(r"```mermaid\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    kind, *lines = diagram.strip().splitlines()
    assert kind == "stateDiagram-v2"
    return [edge(line) for line in lines]


def edge(line: str) -> tuple[State | None, Event, State]:
    parts = re.fullmatch(r" *(\S+) --> (\S+) : (\S+)", line)
    assert parts is not None, f"this line draws no transition: {line!r}"
    source, target, event = parts.groups()
    return None if source == "[*]" else State(source), Event(event), State(target)


def table(first_column: str) -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first_column} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def named(cell: str) -> set[State]:
    return {State(word) for word in re.findall(r"`(\w+)`", cell)}


def test_the_diagram_draws_every_transition_and_no_other() -> None:
    assert set(drawn()) == EDGES


def test_the_diagram_draws_no_transition_twice() -> None:
    assert len(drawn()) == len(EDGES)


def test_the_table_of_events_names_the_same_transitions() -> None:
    listed = {
        (source, Event(event.strip("`")), target)
        for event, sources, targets, _ in table("Event")
        for source in (named(sources) or [None])
        for target in named(targets)
    }
    assert listed == EDGES


def test_the_table_of_events_explains_every_event() -> None:
    assert {Event(row[0].strip("`")) for row in table("Event")} == set(Event)
    assert all(row[3] for row in table("Event"))


def test_the_table_of_outcomes_says_what_is_charged() -> None:
    listed = {AttemptOutcome(row[0].strip("`")): row[1] for row in table("Outcome")}
    assert listed == {end: "yes" if is_charged(end) else "no" for end in AttemptOutcome}


def goes_on(outcome: AttemptOutcome) -> set[State]:
    # What was claimed was due, so a job handed back has nothing to wait for.
    released = outcome is AttemptOutcome.RELEASED
    return {State.READY} if released else {State.SCHEDULED, State.READY}


def test_the_table_of_outcomes_says_where_the_job_goes() -> None:
    for name, _, _, goes in table("Outcome"):
        outcome = AttemptOutcome(name.strip("`"))
        ends = [ending(outcome, Held(used, 0, max_attempts=2)) for used in (0, 1)]
        reached = {end.state for end in ends if end.outcome is outcome}
        if State.SCHEDULED in reached:
            reached = (reached - {State.SCHEDULED}) | goes_on(outcome)
        assert named(goes) == reached, name
