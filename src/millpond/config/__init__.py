"""Settings: frozen, checked where they are made, and refused with name, value and way out."""

from __future__ import annotations

from millpond.config.file import EXAMPLE_TOML, FILE_NAME, TWINS, LogConfig, Settings, load
from millpond.config.settings import QueueSettings, TaskSettings, WorkloadSettings
from millpond.config.store import (
    DEFAULT_URL,
    SqliteAddress,
    StoreConfig,
    default_url,
    parse_url,
    shown_url,
)
from millpond.config.units import parse_bytes, parse_duration
from millpond.config.worker import (
    DEFAULT_CONCURRENCY,
    Retention,
    Serve,
    WorkerConfig,
    beat_interval_ms,
    check_beat,
    concurrency_for,
    parse_serves,
    slots_asked,
)
from millpond.policy.pressure import PressureSettings

__all__ = [
    "DEFAULT_CONCURRENCY",
    "DEFAULT_URL",
    "EXAMPLE_TOML",
    "FILE_NAME",
    "TWINS",
    "LogConfig",
    "PressureSettings",
    "QueueSettings",
    "Retention",
    "Serve",
    "Settings",
    "SqliteAddress",
    "StoreConfig",
    "TaskSettings",
    "WorkerConfig",
    "WorkloadSettings",
    "beat_interval_ms",
    "check_beat",
    "concurrency_for",
    "default_url",
    "load",
    "parse_bytes",
    "parse_duration",
    "parse_serves",
    "parse_url",
    "shown_url",
    "slots_asked",
]
