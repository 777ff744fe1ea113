"""Many jobs, one decision, one commit: all of them or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, ParamSpec, Protocol, Self, TypeVar, Unpack

from millpond.errors import BadConfig, MillpondError
from millpond.model import Admission, Answer, Connection, JobSpec
from millpond.task.options import Options
from millpond.task.refs import JobRef
from millpond.task.task import Bound, Submitter, Task

P = ParamSpec("P")
R = TypeVar("R")

Decode = Callable[[bytes], Any]


class Named(Protocol):
    """What a batch asks of the pond beyond submitting."""

    def named(
        self, name: str, payload: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[JobSpec, Decode | None]:
        """Return the job for a task's name and JSON data, and how to read its result."""
        ...


class BatchHost(Submitter, Named, Protocol):
    """What a batch asks of the pond."""


class Batch:
    """Collects jobs in a `with` (or `async with`) block and stores them when it ends.

    Nothing is written when the block raises. After it, `refs` and `answers` tell about each
    job, in the order they were added. For one thread.
    """

    def __init__(self, pond: BatchHost, tx: Connection | None = None) -> None:
        self._pond = pond
        self._tx = tx
        self._specs: list[JobSpec] = []
        self._decoders: list[Decode | None] = []
        self._admissions: list[Admission] | None = None
        self._refs: list[JobRef[Any]] | None = None

    def add(
        self, task: Task[P, Any, R] | Bound[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Add a call of a task, or of a task with options.

        Raises BadPayload for arguments that cannot be stored.
        """
        self._check_open()
        if isinstance(task, Bound):
            self._check_tx(task.tx)
            decode = task.task.decode_result
        else:
            decode = task.decode_result
        self._specs.append(task.spec(args, kwargs))
        self._decoders.append(decode)

    def add_by_name(
        self, name: str, payload: Mapping[str, Any], /, **options: Unpack[Options]
    ) -> None:
        """Add a job by the name of its task, with JSON data for its parameters."""
        self._check_open()
        self._check_tx(options.get("tx"))
        spec, decode = self._pond.named(name, payload, options)
        self._specs.append(spec)
        self._decoders.append(decode)

    def __len__(self) -> int:
        return len(self._specs)

    @property
    def answers(self) -> list[Answer]:
        """How each job was answered: admitted, coalesced or duplicate."""
        return [admission.answer for admission in self._stored()]

    @property
    def refs(self) -> list[JobRef[Any]]:
        """The handle of each job."""
        if self._refs is None:
            self._refs = [
                JobRef(self._pond, admission, decode)
                for admission, decode in zip(self._stored(), self._decoders, strict=True)
            ]
        return self._refs

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._admissions = self._pond.submit(self._specs, self._tx) if self._specs else []

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            specs = self._specs
            self._admissions = await self._pond.asubmit(specs, self._tx) if specs else []

    def _stored(self) -> list[Admission]:
        if self._admissions is None:
            msg = "this batch is not stored: its refs and answers are there after its `with` block"
            raise MillpondError(msg)
        return self._admissions

    def _check_open(self) -> None:
        if self._admissions is not None:
            msg = f"this batch is stored already ({len(self)} jobs): make another with pond.batch()"
            raise MillpondError(msg)

    def _check_tx(self, tx: Connection | None) -> None:
        if tx is not None and tx is not self._tx:
            msg = "a batch is one transaction: give tx= to pond.batch(), not to its jobs"
            raise BadConfig(msg)
