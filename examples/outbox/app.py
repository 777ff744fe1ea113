"""A shop that tells others what becomes of its orders, and never forgets to.

What happens to an order, the event that tells of it, and the job that will publish the event are
written in one transaction of one SQLite file.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from millpond import Backoff, Context, JobRef, Millpond, Snooze

DATABASE = "shop.db"
BROKER = Path("broker/messages.jsonl")

TABLES = """
CREATE TABLE IF NOT EXISTS orders (
  name TEXT PRIMARY KEY,
  state TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS outbox (
  id INTEGER PRIMARY KEY,  -- grows, so it is the order in which things happened
  order_name TEXT NOT NULL REFERENCES orders,
  event TEXT NOT NULL,
  published INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS outbox_waiting ON outbox (order_name, id) WHERE NOT published;
"""

pond = Millpond(DATABASE)


def connect() -> sqlite3.Connection:
    """Open the shop's own connection."""
    connection = sqlite3.connect(DATABASE, isolation_level=None, timeout=10)
    connection.execute("PRAGMA synchronous=FULL")
    return connection


def set_up() -> None:
    """Make the tables of both, at the start of the program and never inside a transaction."""
    pond.open()
    BROKER.parent.mkdir(exist_ok=True)
    with closing(connect()) as connection:
        connection.executescript(TABLES)


@contextmanager
def transaction() -> Iterator[sqlite3.Connection]:
    """Commit what the block does, or nothing of it."""
    with closing(connect()) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def happens(connection: sqlite3.Connection, order: str, event: str) -> JobRef[None]:
    """Change an order and promise to tell of it, in the transaction of the caller."""
    connection.execute(
        "INSERT INTO orders VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET state = excluded.state",
        (order, event),
    )
    row = connection.execute("INSERT INTO outbox (order_name, event) VALUES (?, ?)", (order, event))
    assert row.lastrowid is not None
    promise = publish.using(tx=connection, serial_key=f"order:{order}")
    return promise.enqueue(row.lastrowid)


@pond.task(lease="2s", max_attempts=20, retry=Backoff(base=0.2, cap=5))
def publish(event_id: int, *, ctx: Context = Context.injected) -> None:
    """Tell of one event, after all earlier ones of the same order."""
    with closing(connect()) as connection:
        order, event, published = connection.execute(
            "SELECT order_name, event, published FROM outbox WHERE id = ?", (event_id,)
        ).fetchone()
        if published:
            return
        if _is_later(connection, order, event_id):
            raise Snooze(0.1)
        send({"id": ctx.operation_id, "order": order, "event": event})
        connection.execute("UPDATE outbox SET published = 1 WHERE id = ?", (event_id,))


def _is_later(connection: sqlite3.Connection, order: str, event_id: int) -> bool:
    """Whether an earlier event of the order is not published: its job may wait for a retry."""
    earlier = "SELECT 1 FROM outbox WHERE order_name = ? AND id < ? AND NOT published"
    return connection.execute(earlier, (order, event_id)).fetchone() is not None


def send(message: dict[str, Any]) -> None:
    """Hand a message to the broker: a file that all may append to, one at a time."""
    with BROKER.open("a", encoding="utf-8") as broker:
        fcntl.flock(broker, fcntl.LOCK_EX)
        broker.write(json.dumps(message) + "\n")


def received() -> list[dict[str, Any]]:
    """Return all messages in the order in which the broker got them, repeats included."""
    if not BROKER.exists():
        return []
    return [json.loads(line) for line in BROKER.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    set_up()
    with transaction() as shop:
        happens(shop, *sys.argv[1:3])
    print(f"{sys.argv[1]} is {sys.argv[2]}, and the promise to tell is stored with it")
