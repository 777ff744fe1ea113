"""What keeper and runner say to each other, the same over a pipe and in memory.

Jobs are named by their claim number, which the store never gives twice. Moments are
milliseconds: `_at` of the wall clock, `mono` of the monotonic one.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import msgspec

from millpond.context import Why
from millpond.model import Claim


class Frame(msgspec.Struct, array_like=True, gc=False):
    """Base of all frames: arrays on the wire, told apart by a number; nobody changes them."""


class Fed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One job on its way to a runner: its place among the marks and the slots it may use."""

    mark: int
    group: int
    claim: Claim


# --- from the keeper ----------------------------------------------------------------------------


class Begin(Frame, tag=0):
    """The keeper is registered; `groups` are the numbers of slots, jobs may follow.

    A second one says that the keeper had to register anew; only `worker` differs then.
    """

    worker: int
    owner: str
    groups: tuple[int, ...]
    marks: str | None


class Feed(Frame, tag=1):
    """Run these, in this order."""

    jobs: list[Fed]


class Drop(Frame, tag=2):
    """Forget what has not started (None: all); answered by one Dropped."""

    claims: list[int] | None


class Halt(Frame, tag=3):
    """Tell running handlers to stop (None: all of them)."""

    claims: list[int] | None
    why: Why


class Renewed(Frame, tag=4):
    """A beat was committed: every job held then has its whole lease again, from `mono` on."""

    mono: int


class Quit(Frame, tag=5):
    """Nothing follows: stop threads and loop, close the store, end."""


# --- from the runner ----------------------------------------------------------------------------


class Hello(Frame, tag=16):
    """The application is imported; this is what it declares, as JSON."""

    pid: int
    version: str
    url: str
    store: bytes
    queues: bytes
    tasks: bytes


class Broken(Frame, tag=17):
    """The application cannot be imported, or the runner's own machinery has died."""

    message: str


class End(IntEnum):
    """How a handler's attempt ended, as far as the runner can tell."""

    COMPLETED = 0
    RETRY = 1
    SNOOZE = 2
    FAIL = 3
    CANCELLED = 4
    TIMED_OUT = 5
    LEASE_LOST = 6
    RELEASED = 7


class Trouble(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An exception as text, safe to store: nothing of the handler's objects travels."""

    type: str
    message: str
    traceback: str
    fingerprint: str


class Outcome(Frame, tag=18):
    """One attempt has ended. `delay_ms` is what the handler asked for, None leaves it open."""

    claim: int
    end: End
    started_at: int | None
    ended_at: int
    ran_us: int
    result: bytes | None = None
    reason: str | None = None
    delay_ms: int | None = None
    trouble: Trouble | None = None


class Dropped(Frame, tag=19):
    """These never started here and never will."""

    claims: list[int]


class Progressed(Frame, tag=20):
    """The latest progress of running jobs, one value per claim."""

    values: list[tuple[int, bytes]]


ToRunner: TypeAlias = Begin | Feed | Drop | Halt | Renewed | Quit
ToKeeper: TypeAlias = Hello | Broken | Outcome | Dropped | Progressed
