"""`millpond.toml` and its twins in the environment.

Arguments win over the environment, the environment over the file, the file over the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from millpond.config.checks import check_choice, refuse_unknown
from millpond.config.store import StoreConfig
from millpond.config.units import parse_bytes, parse_duration
from millpond.config.worker import Retention, WorkerConfig, concurrency_for, parse_serves
from millpond.errors import BadConfig

FILE_NAME = "millpond.toml"

Tables = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How millpond's own processes log."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"

    def __post_init__(self) -> None:
        check_choice("log.format", self.format, ("text", "json"))
        check_choice("log.level", self.level, ("debug", "info", "warning", "error"))


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a process; `path` is the file that was read, None without one."""

    store: StoreConfig = field(default_factory=StoreConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    log: LogConfig = field(default_factory=LogConfig)
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class _Option:
    """One key of the file: the setting it sets, its type there, its twin, how it is read."""

    setting: str
    kind: Any
    twin: str
    convert: Callable[[object, str], object]


@dataclass(frozen=True, slots=True)
class _Given:
    """A value and where it came from, for messages."""

    value: object
    source: str


def _plain(value: object, _source: str) -> object:
    return value


def _serves(value: object, _source: str) -> object:
    texts = [value] if isinstance(value, str) else value
    # The option's kind was checked before.
    return parse_serves(cast("list[str]", texts))


_LENGTH = int | float | str
_SIZE = int | str
_LIST = list[str] | str


def _options(
    table: Mapping[str, tuple[Any, Callable[[object, str], object]]],
    suffix: str = "",
    prefix: str = "MILLPOND_",
) -> dict[str, _Option]:
    """Return the options by key; lengths of time are settings in milliseconds."""
    return {
        key: _Option(
            key + ("_ms" if convert is parse_duration else "") + suffix,
            kind,
            prefix + key.upper(),
            convert,
        )
        for key, (kind, convert) in table.items()
    }


_OPTIONS: dict[str, dict[str, _Option]] = {
    "store": _options(
        {
            "url": (str, _plain),
            "busy": (_LENGTH, parse_duration),
            "synchronous": (str, _plain),
            "sqlite": (str, _plain),
            "strict_safety": (bool, _plain),
            "allow_network_fs": (bool, _plain),
            "max_payload": (_SIZE, parse_bytes),
            "max_result": (_SIZE, parse_bytes),
            "inbox": (int, _plain),
            "checkpoint_pages": (int, _plain),
        }
    ),
    "worker": _options(
        {
            "concurrency": (int, _plain),
            "processes": (int, _plain),
            "queues": (_LIST, _serves),
            "beat": (_LENGTH, parse_duration),
            "poll": (_LENGTH, parse_duration),
            "recover": (_LENGTH, parse_duration),
            "drain": (_LENGTH, parse_duration),
            "window": (_LENGTH, parse_duration),
            "batch": (int, _plain),
        }
    ),
    "retention": _options(
        {
            "completed": (_LENGTH, parse_duration),
            "failed": (_LENGTH, parse_duration),
            "cancelled": (_LENGTH, parse_duration),
        },
        prefix="MILLPOND_KEEP_",
    ),
    "log": _options(
        {"format": (str, _plain), "level": (str, _plain)},
        prefix="MILLPOND_LOG_",
    ),
}

TWINS: dict[str, str] = {
    option.twin: f"{table}.{key}"
    for table, options in _OPTIONS.items()
    for key, option in options.items()
}
"""The environment variables that are read, and the key of the file that each stands for."""


def load(
    path: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    arguments: Tables | None = None,
) -> Settings:
    """Return the settings of a process.

    `path` None reads the file that `MILLPOND_CONFIG` names, else `millpond.toml` in the
    working folder if there is one. `arguments` are tables as in the file; a value of None
    counts as not given. An environment variable that is empty counts as not set.

    Raises BadConfig, naming the file or variable, for what cannot be read, for a key there
    is not (with the closest one), and for values that cannot work.
    """
    env = env or {}
    file = _find(path, env)
    given = _from_file(file) if file else {}
    for more in (_from_env(env), _from_arguments(arguments or {})):
        for table, values in more.items():
            given.setdefault(table, {}).update(values)
    return _settings({table: _read(table, values) for table, values in given.items()}, file)


def _settings(read: Mapping[str, dict[str, Any]], file: Path | None) -> Settings:
    worker = {"retention": Retention(**read.get("retention", {})), **read.get("worker", {})}
    if "concurrency" not in worker:
        processes = worker.get("processes", WorkerConfig().processes)
        worker["concurrency"] = concurrency_for(worker.get("queues", ()), processes)
    return Settings(
        StoreConfig(**read.get("store", {})),
        WorkerConfig(**worker),
        LogConfig(**read.get("log", {})),
        file,
    )


def _find(path: str | Path | None, env: Mapping[str, str]) -> Path | None:
    named = path or env.get("MILLPOND_CONFIG")
    if named:
        return Path(named)
    usual = Path(FILE_NAME)
    return usual if usual.is_file() else None


def _from_file(file: Path) -> dict[str, dict[str, _Given]]:
    import tomllib  # an application that loads no file need not wait for it

    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"{file} cannot be read ({error.strerror}): check the path and its permissions"
        raise BadConfig(msg) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        msg = f"{file} is not valid TOML: {error}"
        raise BadConfig(msg) from error
    return _given(tables, f"{file}: ")


def _from_arguments(arguments: Tables) -> dict[str, dict[str, _Given]]:
    return _given(arguments, "")


def _given(tables: Mapping[str, object], at: str) -> dict[str, dict[str, _Given]]:
    refuse_unknown(at, tables, _OPTIONS)
    found: dict[str, dict[str, _Given]] = {}
    for table, values in tables.items():
        if not isinstance(values, Mapping):
            msg = f"{at}{table} must be a table: write [{table}] and its keys below it"
            raise BadConfig(msg)
        refuse_unknown(f"{at}[{table}] ", values, _OPTIONS[table])
        found[table] = {
            key: _Given(value, f"{at}{table}.{key}")
            for key, value in values.items()
            if value is not None
        }
    return found


def _from_env(env: Mapping[str, str]) -> dict[str, dict[str, _Given]]:
    # Only what is known is looked for: an orchestrator sets MILLPOND_… variables of its own.
    found: dict[str, dict[str, _Given]] = {}
    for table, options in _OPTIONS.items():
        for key, option in options.items():
            text = env.get(option.twin)
            if text:
                value = _typed(text, option.kind, option.twin, strict=False)
                found.setdefault(table, {})[key] = _Given(value, option.twin)
    return found


def _read(table: str, values: Mapping[str, _Given]) -> dict[str, Any]:
    read = {}
    for key, given in values.items():
        option = _OPTIONS[table][key]
        value = _typed(given.value, option.kind, given.source, strict=True)
        read[option.setting] = option.convert(value, given.source)
    return read


def _typed(value: object, kind: Any, source: str, *, strict: bool) -> object:
    try:
        return msgspec.convert(value, kind, strict=strict)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        msg = f"{source} is {value!r}: {error}"
        raise BadConfig(msg) from error


EXAMPLE_TOML = """\
# Settings of millpond: of its worker, its commands, and of applications that load them.
# A line that starts with # and a name shows a default; take the # away to change it.
# Each setting has a twin in the environment, which wins over this file: busy is
# MILLPOND_BUSY, completed under [retention] is MILLPOND_KEEP_COMPLETED, format and level
# under [log] are MILLPOND_LOG_FORMAT and MILLPOND_LOG_LEVEL.

[store]
# A path, relative to where the process is started, or sqlite:////absolute/path.
#url = "./millpond.db"

# How long a write waits for other processes before it gives up with StoreBusy.
#busy = "5s"

# "full" keeps every accepted job through a power loss; "normal" may lose the last ones.
#synchronous = "full"

# Which SQLite library to use; all processes that share the file must use the same.
#sqlite = "stdlib"

# Refuse to start where otherwise a warning about the SQLite library is enough.
#strict_safety = false

# Network file systems break SQLite's locks, so they are refused.
#allow_network_fs = false

# The largest payload and the largest result of one job.
#max_payload = "1MiB"
#max_result = "1MiB"

# How many writes may wait inside one process.
#inbox = 10_000

# At how many pages the write-ahead log is copied into the database at the latest.
#checkpoint_pages = 4_000

[worker]
# How many jobs each runner process runs at once, and how many runners there are; with
# processes = 0 the jobs run inside the worker's own process.
#concurrency = 4
#processes = 1

# Which queues to serve, all by default; a number keeps slots for a queue or a workload:
#   queues = ["reports:4", "reports/routine:2"]
#queues = []

# How often a worker shows that it lives, which renews its leases. By itself it beats every
# 15 s, or four times in the shortest lease that it holds:
#   beat = "15s"

# How often to look for jobs that no wake-up announced, and for leases that have expired.
#poll = "1s"
#recover = "5s"

# How long running jobs may go on after the worker was told to stop.
#drain = "25s"

# How much work, by measured run time, a worker holds beyond what runs, and how many jobs
# one claim takes at most.
#window = "500ms"
#batch = 256

[retention]
# How long final jobs are kept.
#completed = "7d"
#failed = "30d"
#cancelled = "7d"

[log]
# "text" or "json".
#format = "text"
# "debug", "info", "warning" or "error".
#level = "info"
"""
"""What `millpond init` writes: every setting with its default, explained."""
