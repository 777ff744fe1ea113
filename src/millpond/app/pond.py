"""`Millpond`: the object an application declares its queues and tasks on, and enqueues with."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from millpond.app.batch import Batch, Decode
from millpond.app.caller import driver_connection, in_its_thread, is_open
from millpond.app.declared import Declarations, Declared, closest, template_of
from millpond.app.eager import run_now
from millpond.app.opening import Opening
from millpond.app.options import QueueOptions, StoreOptions, WorkerOptions
from millpond.app.retention import Keeping
from millpond.app.testing import Place, Testing
from millpond.clock import Clock, SystemClock
from millpond.codec import encode_json
from millpond.config.settings import QueueSettings, TaskSettings
from millpond.config.store import StoreConfig, shown_url
from millpond.context import current_context
from millpond.errors import BadConfig, StoreBusy, UnknownTask
from millpond.model import Admission, Connection, JobSpec
from millpond.policy.retry import RetryRules
from millpond.store.protocol import Store
from millpond.task.decorator import TaskDecorator
from millpond.task.options import Options, read_options, with_payload
from millpond.task.refs import JobRef
from millpond.task.task import Task

if TYPE_CHECKING:
    from millpond.config.worker import WorkerConfig
    from millpond.worker import DrainReport, EmbeddedWorker


class Millpond(Keeping):
    """A store of durable jobs, with the tasks and queues of one application.

    `url` is a path, `sqlite:///path` or `:memory:`; left out, it is `MILLPOND_URL`, else the
    one of `millpond.toml`, else `./millpond.db`. `options` are those of the file's [store]
    table, for example `busy="5s"`, and win over it. `config` is a file to read instead, or a
    StoreConfig, which is then taken as it is. Nothing is opened before the first use, and
    each process opens for itself, also after a fork.

    `eager=True`, for tests, runs what is due before an enqueue returns: by the same codec,
    store and retries, in this process.

    `strict_queues=True` refuses jobs for queues that were not declared with `queue()`: a
    misspelt name is then an error and not a queue that nobody serves.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        clock: Clock | None = None,
        config: StoreConfig | str | Path | None = None,
        eager: bool = False,
        strict_queues: bool = False,
        **options: Unpack[StoreOptions],
    ) -> None:
        self.config = _store_config(None if url is None else os.fspath(url), config, options)
        self._address = _absolute(self.config)
        self.clock: Clock = clock or SystemClock()
        self.eager = eager
        self.strict_queues = strict_queues
        self._declared = Declared()
        self._opening = _opening(self.config, self._address, self.clock)
        self._tests: list[Testing[Self]] = []
        self._workers: weakref.WeakSet[EmbeddedWorker] = weakref.WeakSet()

    # Declaring

    @property
    def task(self) -> TaskDecorator:
        """The decorator that makes a function a task: `@pond.task` or `@pond.task(...)`."""
        return TaskDecorator(self, {})

    def queue(self, name: str, **options: Unpack[QueueOptions]) -> None:
        """Declare a queue: limits in jobs and bytes, order, and its workloads.

        Options: `max_jobs`, `max_bytes`, `order` ("strict" or "ageing"), `ageing`, `full`,
        `running`, and `workloads`, which maps each name to its `reserved`, `reserved_bytes`,
        `max_jobs`, `max_bytes`, `weight`, `strict`, `borrow`, `full` and `running`. Written
        to the store at the next use. Raises BadConfig for what cannot work.
        """
        self._declared.add_queue(QueueSettings.declared(name, options))

    def register(
        self, function: Callable[..., Any], settings: TaskSettings, rules: RetryRules
    ) -> Task[..., Any, Any]:
        """Make a function a task, as the decorator does with settings ready made."""
        task: Task[..., Any, Any] = Task(function, settings, rules, self, template_of(settings))
        self._declared.add_task(task)
        return task

    @property
    def registry(self) -> Mapping[str, Task[..., Any, Any]]:
        """The registered tasks by name."""
        return self._declared.registry

    def declarations(self) -> Declarations:
        """Return what a process that does not import the application must know of it."""
        declared = self._declared
        return Declarations(
            url=self._address,
            store=self.config,
            queues=tuple(declared.queues.values()),
            tasks=tuple(task.settings for task in declared.tasks.values()),
        )

    # Opening

    @property
    def url(self) -> str:
        """Where the store is."""
        return self.config.url

    @property
    def store(self) -> Store:
        """The process's own connection to the store, opened at first use."""
        return self.ready()

    def open(self) -> Self:
        """Open the store now rather than at first use; also after a `close`."""
        self._opening.reopen()
        self.ready()
        return self

    async def aopen(self) -> Self:
        """Do what `open` does, awaited."""
        return await self._aside(self.open)

    def close(self) -> None:
        """Finish the writes handed over and close; nothing happens when it is not open."""
        self._opening.close()

    async def aclose(self) -> None:
        """Do what `close` does, awaited."""
        await self._aside(self.close)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await self.aopen()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def ready(self) -> Store:
        """Return the open store, knowing all that was declared."""
        opened = self._opening.opened
        if opened.declared < len(self._declared.log):
            with self._opening.lock:
                self._declared.tell(opened)
        return opened.store

    async def aready(self) -> Store:
        """Do the same without blocking the event loop."""
        opening = self._opening
        if opening.is_open and opening.opened.declared == len(self._declared.log):
            return opening.opened.store
        return await self._aside(self.ready)

    # Enqueueing

    def enqueue(
        self, name: str, payload: Mapping[str, Any] | None = None, /, **options: Unpack[Options]
    ) -> JobRef[Any]:
        """Store a job by the name of its task, with JSON data for its parameters.

        For producers that lack the code: the settings are those of this application's task,
        else those the store knows. Raises UnknownTask when there are none and `queue=` does
        not say where the job goes; otherwise as `task.using(...).enqueue(...)`.
        """
        _check_name(name)
        spec, decode = self.named(name, payload or {}, options)
        (admission,) = self.submit((spec,), options.get("tx"))
        return JobRef(self, admission, decode)

    async def aenqueue(
        self, name: str, payload: Mapping[str, Any] | None = None, /, **options: Unpack[Options]
    ) -> JobRef[Any]:
        """Do what `enqueue` does, awaited."""
        _check_name(name)
        tx = options.get("tx")
        # A caller's connection stays in its thread.
        if name in self.registry or tx is not None:
            spec, decode = self.named(name, payload or {}, options)
        else:
            spec, decode = await self._aside(self.named, name, payload or {}, options)
        (admission,) = await self.asubmit((spec,), tx)
        return JobRef(self, admission, decode)

    def batch(self, *, partial: bool = False, tx: Connection | None = None) -> Batch:
        """Return a block that collects jobs and stores them when it ends, all or none.

        With `tx=` they are stored inside the caller's own transaction.
        """
        if partial:
            msg = "partial=True is not available yet: nothing is refused that could be left out"
            raise BadConfig(msg)
        return Batch(self, tx)

    def named(
        self, name: str, payload: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[JobSpec, Decode | None]:
        """Return the job for a task's name and JSON data, and how to read its result."""
        task = self.registry.get(name)
        if task is not None:
            return task.bind(options).spec_named(payload), task.decode_result
        template = template_of(self._stored_settings(name, options))
        spec = read_options(template, options)
        encoded = encode_json(payload, task=name, max_bytes=self.config.max_payload)
        return with_payload(spec, encoded), None

    def submit(self, specs: Sequence[JobSpec], tx: Connection | None) -> list[Admission]:
        """Store the jobs, all or none, and return after the commit; not so with `tx`."""
        self._check_queues(specs)
        if tx is not None:
            return self._submit_in(specs, tx)
        answers = self.ready().enqueue(specs, waits=True).result()
        if self._runs_now:
            run_now(self, answers)
        return answers

    async def asubmit(self, specs: Sequence[JobSpec], tx: Connection | None) -> list[Admission]:
        """Do the same, awaited; with `tx`, in the thread that the connection belongs to."""
        self._check_queues(specs)
        if tx is not None:
            return await in_its_thread(tx, partial(self._submit_in, specs))
        answers = await (await self.aready()).enqueue(specs)
        if self._runs_now:
            await self._aside(run_now, self, answers)
        return answers

    # Working

    def worker(self, **options: Unpack[WorkerOptions]) -> EmbeddedWorker:
        """Return a worker inside this process, to be run in a `with` block.

        Options are those of the [worker] table of `millpond.toml`, for example
        `concurrency=4, queues=["reports:2", "mail"], drain="10s"`, and win over it.
        """
        from millpond.worker import EmbeddedWorker

        worker = EmbeddedWorker(self, _worker_config(options))
        self._workers.add(worker)
        return worker

    def run(self, **options: Unpack[WorkerOptions]) -> DrainReport:
        """Work until SIGTERM or SIGINT, then let running jobs end; options as for `worker`."""
        return self.worker(**options).run()

    def drain(self, **options: Unpack[WorkerOptions]) -> DrainReport:
        """Work until nothing is ready and nothing runs, and return how the jobs ended.

        Jobs that fall due later stay, also the retries of those that failed; options as for
        `worker`.
        """
        return self.worker(**options).drain()

    # Testing

    def testing(
        self,
        url: str | os.PathLike[str] = ":memory:",
        *,
        clock: Clock | None = None,
        eager: bool | None = None,
    ) -> Testing[Self]:
        """Return a block, for tests, in which this pond and its tasks use a store of their own.

        The store is opened at first use and closed at the end of the block; one in memory is
        empty then. Left out, `clock` and `eager` stay as they are. Works with `async with` too.
        Entering raises BadConfig while a worker of this process works for the pond, inside a
        handler, and for the file that the pond has already.
        """

        def place() -> Place:
            config = replace(self.config, url=os.fspath(url))
            address, its_clock = _absolute(config), clock or self.clock
            opening = _opening(config, address, its_clock)
            runs_now = self.eager if eager is None else eager
            return Place(config, address, its_clock, runs_now, opening)

        return Testing(
            self, place=place, move=self._move, inside=self._tests, workers=self._workers
        )

    # Private

    def _move(self, there: Place) -> Place:
        before = Place(self.config, self._address, self.clock, self.eager, self._opening)
        self.config, self._address, self._opening = there.config, there.address, there.opening
        self.clock, self.eager = there.clock, there.eager
        return before

    def _check_queues(self, specs: Sequence[JobSpec]) -> None:
        if not self.strict_queues:
            return
        declared = self._declared.queues
        for name in {spec.queue for spec in specs if spec.queue not in declared}:
            msg = (
                f"queue {name!r} is not declared: {closest(name, declared)} Declare it with "
                "pond.queue(), or leave strict_queues out; nothing was stored"
            )
            raise BadConfig(msg)

    def _submit_in(self, specs: Sequence[JobSpec], tx: Connection) -> list[Admission]:
        store = self._store_beside(tx)
        with driver_connection(tx, self.config) as connection:
            return store.enqueue_in(connection, specs)

    def _store_beside(self, tx: Connection | None) -> Store:
        """Return the store; inside a caller's transaction without telling it what is new.

        To write that would wait for the very transaction that waits for us.
        """
        if tx is None or not is_open(tx, self.config):
            return self.ready()
        try:
            return self._opening.opened.store
        except StoreBusy as error:
            msg = (
                f"{error} If it is your own transaction that holds the lock: a store that does "
                "not exist yet cannot be made inside it. Call pond.open() before you begin."
            )
            raise StoreBusy(msg) from error

    @property
    def _runs_now(self) -> bool:
        # What a handler enqueues is drained with it, by the drain that runs the handler.
        return self.eager and current_context.get() is None

    def _stored_settings(self, name: str, options: Mapping[str, Any]) -> TaskSettings:
        known = self._store_beside(options.get("tx")).tasks()
        if name in known:
            return known[name]
        if options.get("queue") is None:
            msg = (
                f"there is no task {name!r} here or in {shown_url(self.url)}: "
                f"{closest(name, {*self.registry, *known})} "
                "(with queue= the job is stored for a worker that will know the task)"
            )
            raise UnknownTask(msg)
        return TaskSettings(name)

    def __repr__(self) -> str:
        return _shown(self.config)


def _store_config(
    url: str | None, config: StoreConfig | str | Path | None, options: Mapping[str, Any]
) -> StoreConfig:
    if not isinstance(config, StoreConfig):
        from millpond.config.file import load

        return load(config, os.environ, {"store": {**options, "url": url}}).store
    if options:
        msg = f"config= is complete, so {', '.join(options)} must be set in it"
        raise BadConfig(msg)
    return config if url is None else replace(config, url=url)


def _opening(config: StoreConfig, address: str, clock: Clock) -> Opening:
    def open_it() -> Store:
        from millpond.store import open_store

        return open_store(address, clock=clock, config=config)

    return Opening(_shown(config), open_it)


def _shown(config: StoreConfig) -> str:
    return f"<Millpond {shown_url(config.url)}>"


def _check_name(name: object) -> None:
    """Refuse a task in the place of its name."""
    if isinstance(name, str):
        return
    shown = name.name if isinstance(name, Task) else "task"
    msg = (
        f"pond.enqueue() takes a task's name and a mapping of its arguments, "
        f'pond.enqueue("{shown}", {{...}}); with the task at hand write {shown}.enqueue(...)'
    )
    raise TypeError(msg)


def _absolute(config: StoreConfig) -> str:
    """Return the address as it holds wherever the process changes its folder to later."""
    address = config.address
    return address.path if address.memory else os.path.abspath(address.path)  # noqa: PTH100  no links followed


def _worker_config(options: Mapping[str, Any]) -> WorkerConfig:
    from millpond.config.file import load

    return load(None, os.environ, {"worker": {**options, "processes": 0}}).worker
