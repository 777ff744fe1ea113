"""A task: a typed function that can be enqueued, and what a worker needs to run it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, Protocol, TypeVar, Unpack

from msgspec.structs import astuple

from millpond.codec import Signature, encode_json
from millpond.config.settings import TaskSettings
from millpond.config.store import StoreConfig
from millpond.context import Context, current_context
from millpond.errors import BadPayload
from millpond.model import Admission, Connection, JobSpec
from millpond.policy.retry import RetryRules, Verdict, verdict
from millpond.task.foreign import no_such
from millpond.task.options import Options, read_options
from millpond.task.refs import JobRef, Looker

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")

_PAYLOAD = JobSpec.__struct_fields__.index("payload")
_make_spec: Callable[..., JobSpec] = JobSpec


class Submitter(Looker, Protocol):
    """What a task asks of the pond it belongs to."""

    @property
    def config(self) -> StoreConfig:
        """How the store is opened, with the largest payload and result."""
        ...

    def submit(self, specs: Sequence[JobSpec], tx: Connection | None) -> list[Admission]:
        """Store the jobs, all or none, and return after the commit."""
        ...

    async def asubmit(self, specs: Sequence[JobSpec], tx: Connection | None) -> list[Admission]:
        """Do the same, awaited."""
        ...


class Bound(Generic[P, R]):
    """A task with the options of its next enqueues; reusable, and safe to share by threads."""

    __slots__ = ("_encode", "_given", "_head", "_most", "_pond", "_tail", "task", "template", "tx")

    def __init__(self, task: Task[P, Any, R], given: Mapping[str, Any], template: JobSpec) -> None:
        self.task = task
        self.tx: Connection | None = given.get("tx")
        self.template = template
        self._given = given
        self._pond = task.pond
        self._encode = task.signature.encode
        self._most = task.pond.config.max_payload
        values = astuple(template)
        self._head, self._tail = values[:_PAYLOAD], values[_PAYLOAD + 1 :]

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobRef[R]:
        """Store one job and return after the commit.

        With `tx=` it returns before: the job then stands or falls with the caller's
        transaction. Raises BadPayload, with the path, for arguments that cannot be stored,
        and StoreError when the database refuses.
        """
        (admission,) = self._pond.submit((self.spec(args, kwargs),), self.tx)
        return JobRef(self._pond, admission, self.task.decode_result)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobRef[R]:
        """Do what `enqueue` does, awaited."""
        (admission,) = await self._pond.asubmit((self.spec(args, kwargs),), self.tx)
        return JobRef(self._pond, admission, self.task.decode_result)

    def using(self, **options: Unpack[Options]) -> Bound[P, R]:
        """Return a copy with further options; one given again replaces the earlier."""
        return self.task.bind({**self._given, **options})

    def spec(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobSpec:
        """Return the job that a call with these arguments means."""
        try:
            payload = self._encode(args, kwargs, max_bytes=self._most)
        except BadPayload as error:
            raise _with_hint(error, self.task, kwargs) from None
        return _make_spec(*self._head, payload, *self._tail)

    def spec_named(self, payload: Mapping[str, Any]) -> JobSpec:
        """Return the job for JSON data by parameter name; refused when the function would."""
        encoded = encode_json(payload, task=self.task.name, max_bytes=self._most)
        self.task.signature.check(encoded)
        return _make_spec(*self._head, encoded, *self._tail)

    # Hidden from type checkers, which would otherwise accept any name at all.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            no_such(self, "Bound", name, "task.using(...)")

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._given.items())
        return f"{self.task.name}.using({shown})"


def _with_hint(
    error: BadPayload, task: Task[Any, Any, Any], given: Mapping[str, Any]
) -> BadPayload:
    """Tell who passed an option as an argument where options go."""
    names = {parameter.name for parameter in task.signature.parameters}
    options = [name for name in given if name in Options.__annotations__ and name not in names]
    if not options:
        return error
    shown = ", ".join(f"{name}=..." for name in options)
    return BadPayload(f"{error}. Options go apart: {task.name}.using({shown}).enqueue(...)")


class Task(Generic[P, C, R]):
    """A function that can be called, or enqueued to be called by a worker.

    Made by `@pond.task`. Calling it runs the function here and now, without any store.
    """

    def __init__(
        self,
        function: Callable[P, C],
        settings: TaskSettings,
        rules: RetryRules,
        pond: Submitter,
        template: JobSpec,
    ) -> None:
        self.function = function
        self.settings = settings
        self.pond = pond
        self.is_async = inspect.iscoroutinefunction(function)
        self.signature = Signature.of(function, task=settings.name, context_type=Context)
        self.decode = self.signature.decode
        self.decode_result = self.signature.decode_result
        self._context = self.signature.context
        self._rules = rules
        self._template = template
        functools.update_wrapper(self, function)
        self._plain: Bound[P, R] = self.bind({})

    @property
    def name(self) -> str:
        """The name under which jobs of this task are stored."""
        return self.settings.name

    @property
    def takes_context(self) -> bool:
        """Whether the function has a parameter for the Context."""
        return self._context is not None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Run the function here and now; a Context it wants and is not given is a local one."""
        if self._context is not None and self._context not in kwargs:
            kwargs[self._context] = Context.local(self.name)
        return self.function(*args, **kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobRef[R]:
        """Store one job and return after the commit; see `Bound.enqueue`."""
        return self._plain.enqueue(*args, **kwargs)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobRef[R]:
        """Do what `enqueue` does, awaited."""
        return await self._plain.aenqueue(*args, **kwargs)

    def using(self, **options: Unpack[Options]) -> Bound[P, R]:
        """Return the task with options for its next enqueues.

        Raises BadConfig for options that cannot be, before anything is written.
        """
        return self.bind(options)

    def bind(self, given: Mapping[str, Any]) -> Bound[P, R]:
        """Do what `using` does, for options in a mapping."""
        return Bound(self, given, read_options(self._template, given))

    def spec(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobSpec:
        """Return the job that a call with these arguments means."""
        return self._plain.spec(args, kwargs)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], ctx: Context) -> Any:
        """Run the function as the handler of a job, or return its coroutine.

        `Context.current()` answers inside it, and the parameter for the context is filled in.
        """
        if self._context is not None:
            kwargs = {**kwargs, self._context: ctx}
        if self.is_async:
            return _awaited(self.function, args, kwargs, ctx)
        token = current_context.set(ctx)
        try:
            return self.function(*args, **kwargs)
        finally:
            current_context.reset(token)

    def verdict(self, exc: BaseException, now: int) -> Verdict:
        """Say what the exception that ended an attempt means; `now` is wall time in ms."""
        return verdict(exc, self._rules, now=now)

    def encode_result(self, value: Any) -> bytes | None:
        """Return the result as it is stored, None for None.

        Raises BadPayload when it is no data, or larger than a result may be.
        """
        if value is None:
            return None
        return self.signature.encode_result(value, max_bytes=self.pond.config.max_result)

    # Hidden from type checkers, which would otherwise accept any name at all.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            shown = self.__dict__["settings"].name if "settings" in self.__dict__ else "task"
            no_such(self, "Task", name, shown)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"


async def _awaited(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], ctx: Context
) -> Any:
    # Set inside the coroutine, so that it belongs to the asyncio task that runs it.
    token = current_context.set(ctx)
    try:
        return await function(*args, **kwargs)
    finally:
        current_context.reset(token)
