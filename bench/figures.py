"""What a benchmark answers with: values of several rounds, judged by their median."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


class Skipped(Exception):
    """A benchmark cannot run here; the message says why."""


@dataclass(frozen=True, slots=True)
class Need:
    """What the median must reach (`at_least`) or must not exceed."""

    limit: float
    at_least: bool = True

    def met(self, value: float) -> bool:
        """Tell whether a value is good enough."""
        return value >= self.limit if self.at_least else value <= self.limit


def at_least(limit: float) -> Need:
    """Return the requirement that more is better, from here on."""
    return Need(limit)


def at_most(limit: float) -> Need:
    """Return the requirement that less is better, up to here."""
    return Need(limit, at_least=False)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure: a value per round, its unit ("x" for a ratio), what it must reach."""

    name: str
    values: tuple[float, ...]
    need: Need | None = None
    unit: str = "x"
    note: str = ""

    @property
    def value(self) -> float:
        """The median of the rounds: what the requirement is held against."""
        return median(self.values)

    @property
    def verdict(self) -> str:
        """Whether the requirement holds; empty when there is none."""
        if self.need is None:
            return ""
        return "ok" if self.need.met(self.value) else "MISS"

    def line(self) -> str:
        """Return the figure as one line for people."""
        spread = f"{number(min(self.values))} .. {number(max(self.values))}"
        rounds = "1 round" if len(self.values) == 1 else f"{len(self.values)} rounds"
        parts = [f"  {self.name:<34}{number(self.value):>8} {self.unit:<4} ({spread}, {rounds})"]
        if self.need is not None:
            sign = ">=" if self.need.at_least else "<="
            parts.append(f"must be {sign} {number(self.need.limit)}: {self.verdict}")
        if self.note:
            parts.append(f"[{self.note}]")
        return "  ".join(parts)

    def as_json(self) -> dict[str, object]:
        """Return the figure as plain data."""
        need = self.need
        return {
            "name": self.name,
            "median": self.value,
            "values": list(self.values),
            "unit": self.unit,
            "must": None if need is None else [">=" if need.at_least else "<=", need.limit],
            "verdict": self.verdict or None,
            "note": self.note or None,
        }


def compared(
    name: str, found: Sequence[tuple[float, float]], need: Need | None, against: str
) -> Figure:
    """Return the ratios of pairs of rates, and the pair in the middle as a note."""
    ratios = tuple(left / right for left, right in found)
    left, right = sorted(found, key=lambda pair: pair[0] / pair[1])[len(found) // 2]
    note = f"{number(left)} jobs/s against {number(right)} of {against}"
    return Figure(name, ratios, need, note=note)


def number(value: float) -> str:
    """Return a number with about three digits."""
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    digits = 0 if size >= 100 else 1 if size >= 10 else 2
    return f"{value:.{digits}f}"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[round((len(ordered) - 1) * share)]
