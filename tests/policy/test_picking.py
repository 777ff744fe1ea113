"""The picker takes what one merged line would give, and never more than there is room for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millpond.policy.picking import Lane, Meter, Picker, Row

BOUNDLESS = 1 << 30


def lanes_of(stock: dict[int, list[Row]], queue_of: dict[int, int], room: int) -> list[Lane]:
    seat = Meter(room)
    return [
        Lane(lane, queue_of.get(lane, 1), False, (rows[0][0], rows[0][1]), len(rows), (seat,))
        for lane, rows in stock.items()
        if rows
    ]


def run(picker: Picker, stock: dict[int, list[Row]], chunk: int) -> list[Row]:
    at = dict.fromkeys(stock, 0)
    while hungry := picker.run():
        for lane in hungry:
            start = at[lane.id]
            picker.feed(lane, stock[lane.id][start : start + chunk])
            at[lane.id] = start + chunk
    return [row for _, row in picker.picked]


@st.composite
def stocks(draw: st.DrawFn) -> dict[int, list[Row]]:
    ids = iter(draw(st.permutations(range(60))))
    return {
        lane: sorted(
            (draw(st.integers(0, 9)), next(ids), 0) for _ in range(draw(st.integers(0, 9)))
        )
        for lane in range(1, draw(st.integers(1, 6)))
    }


@given(stocks(), st.integers(1, 40), st.integers(1, 5))
def test_lanes_of_one_queue_give_the_order_of_one_line(stock, limit, chunk):
    picker = Picker(lanes_of(stock, {}, BOUNDLESS), limit)
    one_line = sorted(row for rows in stock.values() for row in rows)
    assert run(picker, stock, chunk) == one_line[:limit]


@given(stocks(), st.integers(1, 40), st.integers(0, 20), st.integers(1, 5))
def test_no_more_is_picked_than_seats_allow_and_no_seat_is_wasted(stock, limit, room, chunk):
    picker = Picker(lanes_of(stock, {}, room), limit)
    total = sum(len(rows) for rows in stock.values())
    assert len(run(picker, stock, chunk)) == min(limit, room, total)


@given(stocks(), st.integers(1, 40), st.integers(1, 5), st.integers(0, 7))
def test_queues_are_served_in_turn(stock, limit, chunk, turn):
    queue_of = {lane: lane % 2 for lane in stock}
    picked = run(Picker(lanes_of(stock, queue_of, BOUNDLESS), limit, turn=turn), stock, chunk)
    in_queue = {row: queue_of[lane] for lane, rows in stock.items() for row in rows}
    taken = [sum(in_queue[row] == queue for row in picked) for queue in (0, 1)]
    held = [sum(in_queue[row] == queue for row in in_queue) for queue in (0, 1)]
    assert sum(taken) == min(limit, sum(held))
    for queue in (0, 1):
        if taken[queue] < held[queue]:
            assert taken[queue] >= taken[1 - queue] - 1


@given(stocks(), st.sets(st.integers(0, 59)), st.integers(1, 40))
def test_rows_that_may_not_run_are_passed_over(stock, barred, limit):
    picker = Picker(
        lanes_of(stock, {}, BOUNDLESS), limit, may_run=lambda _, row: row[1] not in barred
    )
    free = sorted(row for rows in stock.values() for row in rows if row[1] not in barred)
    assert run(picker, stock, 3) == free[:limit]


def test_strict_lanes_go_first_whatever_their_rank():
    seat = Meter(BOUNDLESS)
    picker = Picker(
        [
            Lane(1, 1, False, (0, 1), 1, (seat,)),
            Lane(2, 1, True, (9, 2), 1, (seat,)),
            Lane(3, 2, True, (5, 3), 1, (seat,)),
        ],
        3,
    )
    rows = {1: [(0, 1, 0)], 2: [(9, 2, 0)], 3: [(5, 3, 0)]}
    assert [row[1] for row in run(picker, rows, 1)] == [2, 3, 1]


def test_a_meter_shared_by_lanes_closes_all_of_them():
    places, seat = Meter(2), Meter(BOUNDLESS)
    lanes = [Lane(n, 1, False, (n, n), 3, (seat,), (places,)) for n in (1, 2)]
    rows = {n: [(n, 10 * n + at, 0) for at in range(3)] for n in (1, 2)}
    assert [row[1] for row in run(Picker(lanes, 9), rows, 3)] == [10, 11]
