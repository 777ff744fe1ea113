"""The demo's load: how many jobs of which task are due by now, decided without a clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Stream:
    """Jobs of one task: so many a second, numbered from 1."""

    task: str
    per_s: float
    argument: str
    fixed: tuple[tuple[str, Any], ...] = ()


STREAMS = (
    Stream("send_alert", 4, "number"),
    Stream("make_thumbnail", 20, "picture"),
    Stream("build_report", 0.8, "number", (("months", 2),)),
)


@dataclass(slots=True)
class Load:
    """Says which jobs have become due since it was last asked."""

    streams: tuple[Stream, ...] = STREAMS
    _made: dict[str, int] = field(default_factory=dict)

    def due(self, elapsed_s: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield task and payload of every job that is due `elapsed_s` after the start."""
        for stream in self.streams:
            made = self._made.get(stream.task, 0)
            wanted = int(elapsed_s * stream.per_s)
            for number in range(made + 1, wanted + 1):
                yield stream.task, {stream.argument: number, **dict(stream.fixed)}
            self._made[stream.task] = max(made, wanted)
