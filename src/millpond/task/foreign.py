"""Words of other queues: what to write here instead, told where they are used by habit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

TASK_OPTIONS: Mapping[str, str] = {
    "retries": "max_attempts= counts the first try too: retries=3 is max_attempts=4",
    "max_retries": "max_attempts= counts the first try too: max_retries=3 is max_attempts=4",
    "retry_backoff": "retry=Backoff(...) says how long to wait between attempts",
    "default_retry_delay": "retry=Backoff(...) says how long to wait between attempts",
    "autoretry_for": "retry_on= names the exceptions that are worth another attempt",
    "throws": "fail_on= names the exceptions that are not worth another attempt",
    "time_limit": "timeout= says how long an attempt may take",
    "soft_time_limit": "timeout= says how long an attempt may take",
    "queue_name": "queue= names the queue",
    "bind": "a handler takes its context as `*, ctx: Context = Context.injected`",
}
ENQUEUE_OPTIONS: Mapping[str, str] = {
    "countdown": "delay= says how much later it is due",
    "defer_by": "delay= says how much later it is due",
    "eta": "at= takes an aware datetime",
    "run_at": "at= takes an aware datetime",
    "retries": TASK_OPTIONS["retries"],
    "max_retries": TASK_OPTIONS["max_retries"],
    "task_id": "operation_id= names the operation, key= makes it happen once",
    "job_id": "operation_id= names the operation, key= makes it happen once",
    "unique_key": "key= makes it happen once",
    "time_limit": TASK_OPTIONS["time_limit"],
    "queue_name": TASK_OPTIONS["queue_name"],
}
_TASK = {
    "delay": "{0}.enqueue(...)",
    "apply_async": "{0}.using(delay=..., queue=...).enqueue(...)",
    "send": "{0}.enqueue(...)",
    "send_with_options": "{0}.using(...).enqueue(...)",
    "defer": "{0}.enqueue(...), or in async code await {0}.aenqueue(...)",
    "kiq": "await {0}.aenqueue(...)",
    "schedule": "{0}.using(delay=...).enqueue(...)",
    "s": "{0}.enqueue(...): there are no chains, a handler enqueues what comes next",
    "options": "{0}.using(...)",
    "configure": "{0}.using(...)",
}
_REF = {
    "result": "ref.wait() for the result, or ref.job().result of a job that is completed",
    "get": "ref.wait(), or in async code await ref.await_()",
    "state": "ref.job().state",
    "status": "ref.job().state",
    "ready": "ref.job().final",
    "revoke": "pond.cancel(ref.id)",
    "cancel": "pond.cancel(ref.id)",
    "refresh": "ref.job(), which is read anew each time",
}


def no_such(of: object, kind: str, name: str, shown: str = "") -> NoReturn:
    """Raise the AttributeError for an attribute there is not, with what is meant if it is known."""
    known = _REF if kind == "JobRef" else _TASK
    hint = known.get(name)
    said = "" if hint is None else f": write {hint.format(shown)}"
    msg = f"{kind!r} object has no attribute {name!r}{said}"
    raise AttributeError(msg, name=name, obj=of)
