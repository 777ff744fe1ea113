"""A payment provider to play with: it charges once for each idempotency key.

python provider.py [--lose-first-answer]
python provider.py --ledger

It stands for somebody else's service, so it keeps its own ledger, in provider.db. PROVIDER says
where it is, to the shop as well.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sqlite3
import sys
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

LEDGER = "provider.db"
PORT = urlsplit(os.environ.get("PROVIDER", "http://127.0.0.1:8471")).port or 80
LIMIT_CENTS = 100_000

TABLES = """
CREATE TABLE IF NOT EXISTS charge (
  number INTEGER PRIMARY KEY,
  idempotency_key TEXT NOT NULL UNIQUE,
  cents INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS request (idempotency_key TEXT NOT NULL, answer INTEGER NOT NULL);
"""


def charge(key: str, cents: int) -> tuple[int, dict[str, Any]]:
    """Charge, or find the charge that this key made before; return status and answer."""
    with closing(sqlite3.connect(LEDGER, timeout=10)) as ledger, ledger:
        ledger.execute("BEGIN IMMEDIATE")
        if cents > LIMIT_CENTS:
            status, answer = 402, {"error": f"the card is good for {LIMIT_CENTS} cents"}
        else:
            add = "INSERT INTO charge (idempotency_key, cents) VALUES (?, ?) ON CONFLICT DO NOTHING"
            status = 201 if ledger.execute(add, (key, cents)).rowcount else 200
            find = "SELECT number, cents FROM charge WHERE idempotency_key = ?"
            number, charged = ledger.execute(find, (key,)).fetchone()
            answer = {"charge": f"ch_{number}", "cents": charged}
        ledger.execute("INSERT INTO request VALUES (?, ?)", (key, status))
    return status, answer


class Charges(BaseHTTPRequestHandler):
    """POST /charges with a JSON body and an Idempotency-Key."""

    lose_next = False

    def do_POST(self) -> None:
        """Answer when the charge is in the ledger."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = charge(self.headers["Idempotency-Key"], body["cents"])
        if Charges.lose_next:
            Charges.lose_next = False
            threading.Event().wait()  # the money is gone and nobody hears of it
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


class Provider(ThreadingHTTPServer):
    """Serves until it is told to end, also while an answer is lost."""

    daemon_threads = True


def main() -> None:
    """Serve, or print."""
    parser = argparse.ArgumentParser(description="A payment provider to play with.")
    parser.add_argument("--lose-first-answer", action="store_true")
    parser.add_argument("--ledger", action="store_true", help="print the charges and end")
    given = parser.parse_args()
    with closing(sqlite3.connect(LEDGER)) as ledger:
        ledger.executescript(TABLES)
        if given.ledger:
            for row in ledger.execute("SELECT 'ch_' || number, idempotency_key, cents FROM charge"):
                print(*row)
            return
    Charges.lose_next = given.lose_first_answer
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    with Provider(("127.0.0.1", PORT), Charges) as provider:
        provider.serve_forever()


if __name__ == "__main__":
    main()
