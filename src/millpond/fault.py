"""Named fault points: places where a test may kill, stop, delay or fail the process.

`MILLPOND_FAULT="after-commit:raise,claim-committed:exit"` arms points for a process. An
action may carry an argument and a number of passes to skip: `settle-read:sleep=0.5`,
`fed:kill@3` (the fourth pass). Actions: `raise` (FaultInjected), `exit` (os._exit(86)),
`kill` (SIGKILL to itself), `stop` (SIGSTOP), `sleep=SECONDS`. Unarmed points cost one
dictionary lookup.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass

from millpond.errors import refuse_setting

ACTIONS = ("raise", "exit", "kill", "stop", "sleep")

POINTS = {
    "before-commit": "storage thread, after the last statement and before COMMIT",
    "after-commit": "storage thread, COMMIT has returned and nobody was told yet",
    "checkpoint": "storage thread, holding the write lock before a checkpoint",
    "migrate": "inside a migration's transaction, before its COMMIT",
    "recover-read": "recovery has read the expired rows and changed nothing yet",
    "claim-committed": "keeper, a claim is committed and no runner was told",
    "fed": "keeper, jobs were handed to a runner",
    "started": "runner, the job is marked started and the handler not yet called",
    "returned": "runner, the handler has returned and the keeper was not told",
    "outcome-read": "keeper, an outcome was read from the link and is not yet settled",
    "settled": "keeper, the settle is committed and not yet acted upon",
    "beat": "keeper, before a beat is handed to the storage thread",
    "archive-written": "archiving, a batch is written to the file and not yet synced",
    "archive-synced": "archiving, a batch is on disk and nothing was deleted yet",
    "archive-deleted": "archiving, the commit that deletes a batch has returned",
}


class FaultInjected(Exception):
    """Raised by an armed fault point."""


@dataclass(slots=True)
class _Armed:
    action: str
    argument: float
    skip: int


_armed: dict[str, _Armed] = {}
_lock = threading.Lock()


def arm(text: str) -> None:
    """Arm the points that `text` names (see the module docstring), replacing what was armed.

    Raises BadConfig, and leaves what was armed, when any part of `text` cannot be understood.
    """
    parsed = [_parse(part) for part in filter(None, (piece.strip() for piece in text.split(",")))]
    with _lock:
        _armed.clear()
        _armed.update(parsed)


def _parse(part: str) -> tuple[str, _Armed]:
    name, _, rest = part.partition(":")
    rest, marked, skip = rest.partition("@")
    action, valued, argument = rest.partition("=")
    known = name in POINTS and action in ACTIONS
    # Only a sleep has an argument, and one without it would be a fault that does nothing.
    sound = bool(valued) == (action == "sleep") and (not marked or skip.isdecimal())
    seconds = _seconds(argument) if valued else 0.0
    if not (known and sound) or seconds is None:
        allowed = (
            f"POINT:ACTION with a point of {', '.join(POINTS)}, an action of raise, exit, kill, "
            "stop, sleep=SECONDS, and optionally @PASSES_TO_SKIP"
        )
        refuse_setting("MILLPOND_FAULT", part, allowed)
    return name, _Armed(action, seconds, int(skip or 0))


def _seconds(argument: str) -> float | None:
    try:
        seconds = float(argument)
    except ValueError:
        return None
    return seconds if 0 <= seconds <= threading.TIMEOUT_MAX else None


def point(name: str) -> None:
    """Do here what was armed for this point; nothing in production."""
    if _armed and name in _armed:
        _fire(name)


def _fire(name: str) -> None:
    with _lock:
        fault = _armed.get(name)
        if fault is None:  # disarmed by another thread since point() looked
            return
        if fault.skip > 0:
            fault.skip -= 1
            return
    match fault.action:
        case "raise":
            msg = f"fault point {name}"
            raise FaultInjected(msg)
        case "exit":
            os._exit(86)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case _:  # "sleep", the only other one that _parse lets through
            time.sleep(fault.argument)


arm(os.environ.get("MILLPOND_FAULT", ""))
