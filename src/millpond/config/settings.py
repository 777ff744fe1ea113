"""What an application declares: its tasks, its queues and the workloads inside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from millpond.config.checks import (
    check_choice,
    check_flag,
    check_int,
    check_length,
    check_name,
    check_optional_int,
    refuse_unknown,
)
from millpond.config.units import parse_bytes, parse_duration
from millpond.errors import BadConfig, refuse_setting
from millpond.policy.backoff import Backoff
from millpond.policy.effects import Effect, deadline_ms, effect_of
from millpond.policy.ordering import ROUTINE, Order, check_ageing, check_priority
from millpond.policy.pressure import PressureSettings

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

SHORTEST_LEASE_MS = 100
"""Below it, the beat that renews the lease would have to come within the time of one commit."""

Full = Literal["reject"]
_ORDERS = ("strict", "ageing")
_LATER_ORDERS = ("fair",)
_FULL = ("reject",)
_LATER_FULL = ("delay", "coalesce", "shed", "redirect", "defer")


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """How the jobs of one task are run; stored with the task, so that every process knows it.

    `lease_ms` is how long a job stays a worker's without a beat, `timeout_ms` how long an
    attempt may take (None: as long as it likes). `key_ttl_ms` and `result_ttl_ms` count from
    completion, `max_age_ms` from the first due time, `unknown_task_after_ms` is how long a
    job waits for a worker that knows the task (0: not at all). `running` limits the jobs
    that run at once over all workers, None does not.

    Raises BadConfig for values that cannot work.
    """

    name: str
    queue: str = "default"
    workload: str = "default"
    priority: int = ROUTINE
    max_attempts: int = 5
    retry: Backoff = field(default_factory=Backoff)
    timeout_ms: int | None = None
    lease_ms: int = 60_000
    isolation: Literal["thread", "process"] = "thread"
    lossless: bool = False
    key_ttl_ms: int = DAY_MS
    result_ttl_ms: int = 7 * DAY_MS
    max_age_ms: int = 7 * DAY_MS
    unknown_task_after_ms: int = DAY_MS
    resources: tuple[str, ...] = ()
    running: int | None = None

    def __post_init__(self) -> None:
        check_name("the name of a task", self.name)
        at = f"task {self.name!r}: "
        check_name(f"{at}queue", self.queue)
        check_name(f"{at}workload", self.workload)
        check_priority(self.priority, f"{at}priority")
        check_int(f"{at}max_attempts", self.max_attempts, 1)
        check_choice(f"{at}isolation", self.isolation, ("thread", "process"))
        check_flag(f"{at}lossless", self.lossless)
        check_optional_int(f"{at}running", self.running, 1)
        if not isinstance(self.retry, Backoff):
            refuse_setting(f"{at}retry", self.retry, "a Backoff")
        self._check_lengths(at)
        self._check_resources(at)

    def _check_lengths(self, at: str) -> None:
        check_length(f"{at}lease_ms", self.lease_ms, SHORTEST_LEASE_MS)
        if self.timeout_ms is not None:
            check_length(f"{at}timeout_ms", self.timeout_ms, 1)
        check_length(f"{at}key_ttl_ms", self.key_ttl_ms)
        check_length(f"{at}result_ttl_ms", self.result_ttl_ms)
        check_length(f"{at}max_age_ms", self.max_age_ms, 1)
        check_length(f"{at}unknown_task_after_ms", self.unknown_task_after_ms)

    def _check_resources(self, at: str) -> None:
        if not isinstance(self.resources, tuple):
            refuse_setting(f"{at}resources", self.resources, "a tuple of names")
        for resource in self.resources:
            check_name(f"{at}resources", resource)
        if len(set(self.resources)) < len(self.resources):
            refuse_setting(f"{at}resources", self.resources, "a tuple without repetitions")

    def to_json(self) -> str:
        """Return the settings as canonical JSON: equal settings give equal text."""
        values = asdict(self) | {"retry": self.retry.to_json()}
        return json.dumps(values, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> TaskSettings:
        """Return the settings that `to_json` gave, in this version or another.

        What a newer version added is left out, and what it alone accepts has its default
        here: a worker of an older version must still be able to recover the task's jobs.
        """
        stored = json.loads(text)
        kept: dict[str, Any] = {}
        for name in ("name", *(setting.name for setting in fields(cls) if setting.name in stored)):
            try:
                value = _restored(name, stored[name])
                cls(**(kept | {name: value}))
            except BadConfig:
                continue
            kept[name] = value
        return cls(**kept)


def _restored(name: str, value: Any) -> Any:
    match name:
        case "retry":
            return Backoff.from_json(value)
        case "resources":
            return tuple(value)
        case _:
            return value


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    """One class of work inside a queue, with capacity of its own.

    `reserved` and `reserved_bytes` are never lent; `max_jobs` and `max_bytes` are ceilings
    (None: those of the queue). Of the slots, `strict` workloads take theirs first (None: a
    workload named "critical" does), the others by `weight` where it is given. `full` None is
    the queue's policy.

    `effect` is how much the work matters under pressure: "critical", "user", "routine" or
    "sheddable" (None: what its name says, else routine, and then only where the queue has
    work that matters more). `deadline_ms` is how long it may wait before it is late, 0 as
    long as it likes (None: that of the effect).

    Raises BadConfig for values that cannot work.
    """

    name: str
    reserved: int = 0
    reserved_bytes: int = 0
    max_jobs: int | None = None
    max_bytes: int | None = None
    weight: int | None = None
    strict: bool | None = None
    full: Full | None = None
    borrow: bool = True
    running: int | None = None
    effect: str | None = None
    deadline_ms: int | None = None

    def __post_init__(self) -> None:
        check_name("the name of a workload", self.name)
        at = f"workload {self.name!r}: "
        check_int(f"{at}reserved", self.reserved, 0)
        check_int(f"{at}reserved_bytes", self.reserved_bytes, 0)
        check_optional_int(f"{at}max_jobs", self.max_jobs, 0)
        check_optional_int(f"{at}max_bytes", self.max_bytes, 0)
        check_optional_int(f"{at}weight", self.weight, 1, 1_000_000)
        check_optional_int(f"{at}running", self.running, 1)
        check_flag(f"{at}borrow", self.borrow)
        if self.strict is not None:
            check_flag(f"{at}strict", self.strict)
        if self.full is not None:
            check_choice(f"{at}full", self.full, _FULL, later=_LATER_FULL)
        if self.effect is not None:
            check_choice(f"{at}effect", self.effect, tuple(each.value for each in Effect))
        if self.deadline_ms is not None:
            check_length(f"{at}deadline_ms", self.deadline_ms)
        _check_fits(f"{at}reserved", self.reserved, "max_jobs", self.max_jobs)
        _check_fits(f"{at}reserved_bytes", self.reserved_bytes, "max_bytes", self.max_bytes)

    @property
    def is_strict(self) -> bool:
        """Whether its ready jobs go before those of workloads that are not strict."""
        return self.name == "critical" if self.strict is None else self.strict

    @property
    def has_effect(self) -> Effect:
        """How much its work matters under pressure."""
        return effect_of(self.name) if self.effect is None else Effect(self.effect)

    @property
    def has_deadline_ms(self) -> int | None:
        """After how long its work is late, None for never."""
        return (
            deadline_ms(self.has_effect) if self.deadline_ms is None else self.deadline_ms
        ) or None


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """A named line with limits in jobs and bytes, and an order.

    "strict" order is by priority, then due time; "ageing" lets a job gain one step of
    priority for every `ageing_ms` that it waits. `running` limits the jobs of the queue that
    run at once over all workers, None does not. `pressure` says from which figures on the
    queue is elevated or critical.

    Raises BadConfig for values that cannot work, and for reserves that exceed the limits.
    """

    name: str
    max_jobs: int = 100_000
    max_bytes: int = 1 << 30
    order: Order = "strict"
    ageing_ms: int = 60_000
    full: Full = "reject"
    workloads: tuple[WorkloadSettings, ...] = ()
    running: int | None = None
    pressure: PressureSettings = field(default_factory=PressureSettings)

    def __post_init__(self) -> None:
        check_name("the name of a queue", self.name)
        at = f"queue {self.name!r}: "
        check_int(f"{at}max_jobs", self.max_jobs, 0)
        check_int(f"{at}max_bytes", self.max_bytes, 0)
        check_choice(f"{at}order", self.order, _ORDERS, later=_LATER_ORDERS)
        check_ageing(self.ageing_ms, f"{at}ageing_ms")
        check_choice(f"{at}full", self.full, _FULL, later=_LATER_FULL)
        check_optional_int(f"{at}running", self.running, 1)
        if not isinstance(self.pressure, PressureSettings):
            refuse_setting(f"{at}pressure", self.pressure, "a PressureSettings")
        self._check_workloads(at)

    def _check_workloads(self, at: str) -> None:
        names = [workload.name for workload in self.workloads]
        if len(set(names)) < len(names):
            refuse_setting(f"{at}workloads", names, "a list without repetitions")
        jobs = sum(workload.reserved for workload in self.workloads)
        size = sum(workload.reserved_bytes for workload in self.workloads)
        _check_fits(f"{at}the sum of reserved", jobs, "max_jobs", self.max_jobs)
        _check_fits(f"{at}the sum of reserved_bytes", size, "max_bytes", self.max_bytes)

    @classmethod
    def declared(cls, name: str, options: Mapping[str, Any]) -> QueueSettings:
        """Return a queue from options as people write them, in a call or in a file.

        Sizes may be texts such as "2GiB", `ageing` a length of time, and `workloads` maps
        each name to its own options. Raises BadConfig for an option there is not, with the
        closest name.
        """
        at = f"queue {name!r}: "
        given = dict(options)
        workloads = given.pop("workloads", {})
        if not isinstance(workloads, Mapping):
            refuse_setting(f"{at}workloads", workloads, "a mapping from names to their options")
        values = _converted(at, given, _QUEUE_OPTIONS)
        return cls(
            name, workloads=tuple(_workload(at, *item) for item in workloads.items()), **values
        )

    def workload(self, name: str) -> WorkloadSettings:
        """Return the settings of one workload, those by default when it was not declared."""
        found = (workload for workload in self.workloads if workload.name == name)
        return next(found, WorkloadSettings(name))


Convert = Callable[[object, str], object]


def _as_given(value: object, _name: str) -> object:
    return value


_SHARED_OPTIONS: dict[str, tuple[str, Convert]] = {
    "max_jobs": ("max_jobs", _as_given),
    "max_bytes": ("max_bytes", parse_bytes),
    "full": ("full", _as_given),
    "running": ("running", _as_given),
}
_PRESSURE_OPTIONS: dict[str, tuple[str, Convert]] = {
    option: (each.name, parse_duration if option != each.name else _as_given)
    for each in fields(PressureSettings)
    for option in (each.name.removesuffix("_ms"),)
}


def _pressure(value: object, name: str) -> object:
    if isinstance(value, PressureSettings):
        return value
    if not isinstance(value, Mapping):
        refuse_setting(name, value, "a mapping of its options")
    return PressureSettings(**_converted(f"{name}.", value, _PRESSURE_OPTIONS))


_QUEUE_OPTIONS = _SHARED_OPTIONS | {
    "order": ("order", _as_given),
    "ageing": ("ageing_ms", parse_duration),
    "pressure": ("pressure", _pressure),
}
_WORKLOAD_OPTIONS = _SHARED_OPTIONS | {
    "reserved": ("reserved", _as_given),
    "reserved_bytes": ("reserved_bytes", parse_bytes),
    "weight": ("weight", _as_given),
    "strict": ("strict", _as_given),
    "borrow": ("borrow", _as_given),
    "effect": ("effect", _as_given),
    "deadline": ("deadline_ms", parse_duration),
}


def _workload(at: str, name: str, options: object) -> WorkloadSettings:
    if not isinstance(options, Mapping):
        refuse_setting(f"{at}workloads[{name!r}]", options, "a mapping of its options")
    return WorkloadSettings(
        name, **_converted(f"{at}workload {name!r}: ", options, _WORKLOAD_OPTIONS)
    )


def _converted(
    at: str, options: Mapping[str, Any], known: Mapping[str, tuple[str, Convert]]
) -> dict[str, Any]:
    refuse_unknown(at, options, known)
    values = {}
    for option, value in options.items():
        setting, convert = known[option]
        values[setting] = None if value is None else convert(value, at + option)
    return values


def _check_fits(name: str, reserved: int, limit_name: str, limit: int | None) -> None:
    if limit is not None and reserved > limit:
        msg = (
            f"{name} is {reserved}, more than {limit_name}, {limit}: "
            f"lower what is reserved or raise {limit_name}"
        )
        raise BadConfig(msg)
