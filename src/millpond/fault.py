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

from millpond.errors import BadConfig

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
}


class FaultInjected(Exception):  # noqa: N818  a test's own doing
    """Raised by an armed fault point."""


@dataclass(slots=True)
class _Armed:
    action: str
    argument: float
    skip: int


_armed: dict[str, _Armed] = {}
_lock = threading.Lock()


def arm(text: str) -> None:
    """Arm the points that `text` names (see the module docstring), replacing what was armed."""
    parsed: dict[str, _Armed] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, rest = part.partition(":")
        rest, _, skip = rest.partition("@")
        action, _, argument = rest.partition("=")
        if name not in POINTS or action not in ACTIONS:
            msg = (
                f"MILLPOND_FAULT has {part!r}: use POINT:ACTION with a point of "
                f"{', '.join(POINTS)} and an action of {', '.join(ACTIONS)}"
            )
            raise BadConfig(msg)
        parsed[name] = _Armed(action, float(argument or 0), int(skip or 0))
    _armed.clear()
    _armed.update(parsed)


def point(name: str) -> None:
    """Do here what was armed for this point; nothing in production."""
    if _armed and name in _armed:
        _fire(name)


def _fire(name: str) -> None:
    with _lock:
        fault = _armed[name]
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
        case _:
            time.sleep(fault.argument)


arm(os.environ.get("MILLPOND_FAULT", ""))
