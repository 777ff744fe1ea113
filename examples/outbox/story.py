"""The story of the outbox: workers are killed before and after they publish, and nothing is lost.

python story.py [FOLDER]
"""

from __future__ import annotations

import fcntl
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from stage import Stage, check, say, stage, until

ORDERS = ("order-1", "order-2", "order-3")


def play(stage: Stage) -> None:
    """Tell it from the beginning to the end."""
    import app

    app.set_up()
    nothing_for_nothing()
    together()
    killed_before(stage)
    killed_after(stage)
    killed_before_it_says_so(stage)
    in_order_however_it_fails(stage)
    what_the_subscriber_saw()
    app.pond.close()
    say(f"\nLook around in {stage.folder}: shop.db, broker, and the logs of the workers.")


def tell(event: str) -> list[int]:
    """Let something happen to all orders, each in a transaction of its own; return the jobs."""
    import app

    jobs = []
    for order in ORDERS:
        with app.transaction() as shop:
            jobs.append(app.happens(shop, order, event).id)
    return jobs


def nothing_for_nothing() -> None:
    """Roll back."""
    import app

    say("1. An order is stored with its job, and then the card is declined: all is rolled back.")
    with suppress(ConnectionRefusedError), app.transaction() as shop:
        app.happens(shop, "order-0", "placed")
        raise ConnectionRefusedError
    check(rows() == 0 and not app.pond.jobs(), "Neither the event nor its job is there.")


def together() -> None:
    """Commit."""
    import app

    say("\n2. Three orders are placed. No worker runs yet.")
    tell("placed")
    check(
        rows() == len(app.pond.jobs()) == 3, "Three events and three jobs, each pair by one commit."
    )


def killed_before(stage: Stage) -> None:
    """Kill a worker whose handlers are on the way to the broker."""
    import app

    say("\n3. The broker is stuck. A worker takes the jobs, and gets kill -9 while it waits.")
    with broker_is_stuck():
        worker = stage.worker()
        until(lambda: held_by(worker) == 3, "the worker runs three jobs")
        stage.kill(worker)
    check(app.received() == [], "Nothing was published, and nothing is forgotten.")


def killed_after(stage: Stage) -> None:
    """Kill a worker between the publishing and the note that it was done."""
    import app

    say("\n4. Another worker gets the jobs when their leases have run out. It publishes, and gets")
    say("   kill -9 before it can note that.")
    with broker_is_stuck() as unstick:
        worker = stage.worker()
        until(lambda: held_by(worker) == 3, "the second worker runs the jobs again")
        with closing(app.connect()) as shop:
            shop.execute("BEGIN IMMEDIATE")  # the note must wait for us, the broker need not
            unstick()
            until(lambda: len(app.received()) == 3, "the broker has got three events")
            stage.kill(worker)
            shop.execute("ROLLBACK")
    check(rows("published") == 0, "The broker has three events of which the shop does not know.")


def killed_before_it_says_so(stage: Stage) -> None:
    """Kill a worker that knows how a job ended and has not stored it."""
    import app

    say("\n5. A third worker dies by itself at the worst moment: an event is published and noted,")
    say("   and the job is not yet stored as done.")
    worker = stage.worker(fault="outcome-read:kill")
    until(lambda: worker.poll() is not None, "the third worker has died")
    stage.kill(worker)
    check(worker.returncode == -9, "It was killed by signal 9.")
    check(rows("published") > 0, "Some events are published and noted.")
    check(not app.pond.jobs(state="completed"), "No job is completed.")


def in_order_however_it_fails(stage: Stage) -> None:
    """Let publishing fail while more happens, then let the rest be done."""
    import app

    say("\n6. Two workers that nobody kills, but the broker is away: what they try fails and waits")
    say("   for its retry. The orders are paid and shipped meanwhile.")
    with broker_is_away():
        workers = [stage.worker(), stage.worker()]
        paid = tell("paid")
        until(lambda: all(map(outcomes, paid)), "all that was paid has been tried")
        shipped = tell("shipped")
        until(lambda: all(map(outcomes, shipped)), "all that was shipped has been looked at")
        held_back = all(outcomes(job) == {"snoozed"} for job in shipped)
    check(held_back, "No worker tried to tell of the shipping before the rest.")
    until(lambda: app.pond.status().outstanding == 0, "nothing is left to do")
    for worker in workers:
        stage.stop(worker)
    states = Counter(job.state for job in app.pond.jobs())
    check(states == {"completed": 9}, "The broker is back, and all nine jobs are completed.")
    check(rows("published") == rows() == 9, "All nine events are published, and the shop knows it.")
    check(app.pond.verify() == [], "The file is sound.")


def what_the_subscriber_saw() -> None:
    """Compare what was sent with what is new to somebody who knows the ids of the past."""
    import app
    from subscriber import listen

    say("\n7. What the subscriber makes of it:")
    told = Counter(message["id"] for message in app.received())
    repeats = sum(told.values()) - len(told)
    ids = {job.operation_id for job in app.pond.jobs()}
    check(set(told) == ids, "Every event came, each under the operation id of its job.")
    check(repeats >= 3, f"{repeats} messages were repeats, recognisable by that id.")
    new = listen()
    for order in ORDERS:
        wanted = [f"{order} is {event}" for event in ("placed", "paid", "shipped")]
        check([line for line in new if line.startswith(order)] == wanted, ", ".join(wanted) + ".")


@contextmanager
def broker_is_stuck() -> Iterator[Callable[[], None]]:
    """Hold the broker; gives what lets it go before the end of the block."""
    import app

    with app.BROKER.open("a") as broker:
        fcntl.flock(broker, fcntl.LOCK_EX)
        yield broker.close


@contextmanager
def broker_is_away() -> Iterator[None]:
    """Move the broker to where nobody finds it."""
    import app

    away = app.BROKER.parent.rename("away")
    yield
    away.rename(app.BROKER.parent)


def outcomes(job: int) -> set[str]:
    """Return how attempts of a job have ended so far."""
    import app

    return {attempt.outcome.value for attempt in app.pond.attempts(job)}


def held_by(worker: subprocess.Popen[bytes]) -> int:
    """Count the jobs that a worker holds."""
    import app

    leases = [job.lease for job in app.pond.jobs(state="running")]
    return sum(lease is not None and lease.owner.endswith(f":{worker.pid}") for lease in leases)


def rows(where: str = "true") -> int:
    """Count the events."""
    with closing(sqlite3.connect("shop.db")) as shop:
        (count,) = shop.execute(f"SELECT count(*) FROM outbox WHERE {where}").fetchone()
    return int(count)


if __name__ == "__main__":
    with stage(Path(__file__).parent, sys.argv[1:]) as playing:
        play(playing)
