"""The story of a payment: workers are killed after the charge, and nobody pays twice.

python story.py [FOLDER]
"""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from stage import Stage, check, say, stage, until


def play(stage: Stage) -> None:
    """Tell it from the beginning to the end."""
    port = free_port()
    os.environ["PROVIDER"] = f"http://127.0.0.1:{port}"
    stage.start(["provider.py", "--lose-first-answer"])
    until(lambda: is_up(port), "the provider is up")
    import app

    app.set_up()
    ordered_twice()
    killed_before_the_answer(stage)
    killed_before_it_is_stored(stage)
    declined(stage)
    the_books()
    app.pond.close()
    say(f"\nLook around in {stage.folder}: shop.db, provider.db, and the logs of the workers.")


def ordered_twice() -> None:
    """Enqueue twice under one key."""
    import app

    say("1. A customer pays order 812, 49.90, and clicks twice.")
    clicks = [app.pay(812, 4_990), app.pay(812, 4_990)]
    check([ref.answer for ref in clicks] == ["admitted", "duplicate"], "The second is a duplicate.")
    check(len(app.pond.jobs()) == 1, "There is one job.")


def killed_before_the_answer(stage: Stage) -> None:
    """Kill a worker that has charged and does not know it; let another one try again."""
    say("\n2. The provider charges the card, but its answer is lost, and the worker gets kill -9.")
    worker = stage.worker()
    until(lambda: charges("payment-812"), "the card is charged")
    stage.kill(worker)
    check(payments() == [], "The shop knows of no payment.")
    say("   When the lease has run out, another worker asks again, with the same operation id.")
    worker = stage.worker()
    finished(812)
    stage.stop(worker)
    check(attempts(812) == ["lease_lost", "completed"], "Two attempts,")
    check(requests("payment-812") == [201, 200], "two requests: charged, then known already,")
    check(charges("payment-812") == [4_990], "one charge.")


def killed_before_it_is_stored(stage: Stage) -> None:
    """Kill a worker that knows how the job ended and has not stored it."""
    import app

    say(
        "\n3. Order 813. The worker charges and books, and dies by itself before it stores the end."
    )
    app.pay(813, 1_200)
    worker = stage.worker(fault="outcome-read:kill")
    until(lambda: worker.poll() is not None, "the worker has died")
    stage.kill(worker)
    check(worker.returncode == -9, "It was killed by signal 9.")
    check(not app.pond.jobs(state="completed", key="order:813"), "The job is not done.")
    say("   The next attempt finds the answer that the first one has remembered.")
    worker = stage.worker()
    finished(813)
    stage.stop(worker)
    check(attempts(813) == ["lease_lost", "completed"], "Two attempts,")
    check(requests("payment-813") == [201], "one request,")
    check(charges("payment-813") == [1_200], "one charge.")


def declined(stage: Stage) -> None:
    """Let the provider say no."""
    import app

    say("\n4. Order 814 is more than the card is good for.")
    app.pay(814, 250_000)
    worker = stage.worker()
    finished(814)
    stage.stop(worker)
    check(attempts(814) == ["failed"], "One attempt: a no is not asked again.")
    (job,) = jobs(app, 814)
    check(job.reason.startswith("declined"), f"Why it failed is kept: {job.reason}.")
    check(charges("payment-814") == [], "No charge.")


def the_books() -> None:
    """Compare both sides."""
    import app

    say("\n5. The books of both sides:")
    ours = sorted(payments())
    theirs = read("provider.db", "SELECT idempotency_key, cents FROM charge ORDER BY 1")
    check(ours == theirs == [("payment-812", 4_990), ("payment-813", 1_200)], f"{ours}, on both.")
    check(app.pond.verify() == [], "The file is sound.")


def finished(order: int) -> None:
    """Wait until the job of an order has ended."""
    import app

    until(lambda: all(job.final for job in jobs(app, order)), f"order {order} is through")


def attempts(order: int) -> list[str]:
    """Return how the attempts of an order's job ended."""
    import app

    (job,) = jobs(app, order)
    return [attempt.outcome.value for attempt in app.pond.attempts(job.id)]


def jobs(app: Any, order: int) -> list[Any]:
    """Return the jobs of an order."""
    return list(app.pond.jobs(operation_id=f"payment-{order}"))


def payments() -> list[tuple[Any, ...]]:
    """Return what the shop has booked."""
    return read("shop.db", "SELECT operation_id, cents FROM payment")


def charges(key: str) -> list[int]:
    """Return what the provider has charged for a key."""
    found = read("provider.db", "SELECT cents FROM charge WHERE idempotency_key = ?", key)
    return [cents for (cents,) in found]


def requests(key: str) -> list[int]:
    """Return what the provider has answered to requests with a key."""
    found = read("provider.db", "SELECT answer FROM request WHERE idempotency_key = ?", key)
    return [status for (status,) in found]


def read(file: str, query: str, *values: str) -> list[tuple[Any, ...]]:
    """Ask a database."""
    with closing(sqlite3.connect(file)) as connection:
        return list(connection.execute(query, values))


def free_port() -> int:
    """Find a port that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def is_up(port: int) -> bool:
    """Whether somebody listens."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    with stage(Path(__file__).parent, sys.argv[1:]) as playing:
        play(playing)
