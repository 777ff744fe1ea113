from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from millpond.config import (
    EXAMPLE_TOML,
    TWINS,
    LogConfig,
    Retention,
    Serve,
    Settings,
    StoreConfig,
    WorkerConfig,
    load,
)
from millpond.errors import BadConfig


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(folder: Path, text: str, name: str = "millpond.toml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def uncommented() -> str:
    return re.sub(r"(?m)^#(?=[a-z_]+ = )", "", EXAMPLE_TOML)


def test_without_a_file_and_environment_everything_has_its_default(folder: Path) -> None:
    assert load() == Settings(StoreConfig(), WorkerConfig(), LogConfig(), None)


def test_the_example_file_changes_nothing_as_it_is_written(folder: Path) -> None:
    file = written(folder, EXAMPLE_TOML)
    assert load(file) == Settings(path=file)


def test_the_example_file_shows_the_defaults(folder: Path) -> None:
    file = written(folder, uncommented())
    assert load(file) == Settings(path=file)


def test_the_example_file_shows_every_setting_there_is() -> None:
    table, shown = "", set()
    for line in EXAMPLE_TOML.splitlines():
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            table = heading[1]
        elif setting := re.match(r"#(?:  )?(\w+) = ", line.replace("#   ", "#  ")):
            shown.add(f"{table}.{setting[1]}")
    assert shown == set(TWINS.values())


def test_a_file_in_the_working_folder_is_found(folder: Path) -> None:
    written(folder, '[worker]\npoll = "250ms"\nqueues = ["a:3", "b/c:2"]\n')
    settings = load()
    assert settings.path == Path("millpond.toml")
    assert settings.worker.poll_ms == 250
    assert settings.worker.queues == (Serve("a", slots=3), Serve("b", "c", 2))


def test_the_environment_may_name_the_file(folder: Path) -> None:
    file = written(folder, "[store]\ninbox = 5\n", "other.toml")
    assert load(None, {"MILLPOND_CONFIG": str(file)}).store.inbox == 5


def test_arguments_win_over_the_environment_and_that_over_the_file(folder: Path) -> None:
    file = written(folder, "[worker]\npoll = 1\nrecover = 1\ndrain = 1\n")
    settings = load(
        file,
        {"MILLPOND_RECOVER": "2s", "MILLPOND_DRAIN": "2s"},
        {"worker": {"drain": "3s", "poll": None}},
    ).worker
    assert (settings.poll_ms, settings.recover_ms, settings.drain_ms) == (1_000, 2_000, 3_000)


def test_every_setting_has_a_twin_in_the_environment() -> None:
    env = {
        "MILLPOND_URL": "x.db",
        "MILLPOND_BUSY": "1s",
        "MILLPOND_SYNCHRONOUS": "normal",
        "MILLPOND_SQLITE": "pysqlite3",
        "MILLPOND_STRICT_SAFETY": "true",
        "MILLPOND_ALLOW_NETWORK_FS": "1",
        "MILLPOND_MAX_PAYLOAD": "2MiB",
        "MILLPOND_MAX_RESULT": "3MiB",
        "MILLPOND_INBOX": "7",
        "MILLPOND_CHECKPOINT_PAGES": "9",
        "MILLPOND_CONCURRENCY": "8",
        "MILLPOND_PROCESSES": "2",
        "MILLPOND_QUEUES": "a:1,b",
        "MILLPOND_BEAT": "2s",
        "MILLPOND_POLL": "3s",
        "MILLPOND_RECOVER": "4s",
        "MILLPOND_DRAIN": "5s",
        "MILLPOND_WINDOW": "1ms",
        "MILLPOND_BATCH": "11",
        "MILLPOND_KEEP_COMPLETED": "1d",
        "MILLPOND_KEEP_FAILED": "2d",
        "MILLPOND_KEEP_CANCELLED": "3d",
        "MILLPOND_LOG_FORMAT": "json",
        "MILLPOND_LOG_LEVEL": "debug",
    }
    assert set(env) == set(TWINS)
    settings = load(None, env)
    assert settings.store == StoreConfig(
        "x.db", 1_000, "normal", "pysqlite3", True, True, 2 << 20, 3 << 20, 7, 9
    )
    assert settings.worker == WorkerConfig(
        concurrency=8,
        processes=2,
        queues=(Serve("a", slots=1), Serve("b")),
        beat_ms=2_000,
        poll_ms=3_000,
        recover_ms=4_000,
        drain_ms=5_000,
        window_ms=1,
        batch=11,
        retention=Retention(86_400_000, 2 * 86_400_000, 3 * 86_400_000),
    )
    assert settings.log == LogConfig("json", "debug")


def test_variables_of_others_and_empty_ones_are_left_alone(folder: Path) -> None:
    env = {"MILLPOND_PORT": "tcp://10.0.0.1", "MILLPOND_FAULT": "", "MILLPOND_POLL": ""}
    assert load(None, env) == Settings()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[worker]\nconcurency = 3", r"millpond\.toml: \[worker\] .*did you mean 'concurrency'"),
        ("[workers]\n", r"millpond\.toml: there is no option 'workers': did you mean 'worker'"),
        ("[worker]\nzzz = 3", "there are batch, beat, concurrency"),
        ("worker = 3", r"worker must be a table: write \[worker\]"),
        ('[worker]\nbatch = "3"', r"millpond\.toml: worker\.batch is '3': Expected `int`"),
        ("[worker]\nbatch = true", r"worker\.batch is True: Expected `int`"),
        ("[worker]\nqueues = [3]", r"worker\.queues is \[3\]: Expected `str`"),
        ('[worker]\npoll = "soon"', r"millpond\.toml: worker\.poll is 'soon': it must be a length"),
        ("[worker]\nbatch = 0", r"worker\.batch is 0"),
        ('[store]\nurl = "postgresql://a:secret@b/c"', "no PostgreSQL engine yet"),
        ("[log]\nlevel = 'loud'", r"log\.level is 'loud'"),
        ("[worker\n", r"millpond\.toml is not valid TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_the_file_and_the_key(
    folder: Path, text: str, match: str
) -> None:
    with pytest.raises(BadConfig, match=match) as caught:
        load(written(folder, text))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("env", "match"),
    [
        ({"MILLPOND_BATCH": "many"}, "^MILLPOND_BATCH is 'many'"),
        ({"MILLPOND_STRICT_SAFETY": "perhaps"}, "^MILLPOND_STRICT_SAFETY is 'perhaps'"),
        ({"MILLPOND_POLL": "soon"}, "^MILLPOND_POLL is 'soon'"),
        ({"MILLPOND_BEAT": "never"}, "^MILLPOND_BEAT is 'never'"),
    ],
)
def test_a_mistake_in_the_environment_is_named_with_the_variable(
    folder: Path, env: dict[str, str], match: str
) -> None:
    with pytest.raises(BadConfig, match=match):
        load(None, env)


def test_a_file_that_is_not_there_or_no_text_is_refused_with_its_path(folder: Path) -> None:
    with pytest.raises(BadConfig, match=r"gone\.toml cannot be read \(No such file"):
        load("gone.toml")
    (folder / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadConfig, match=r"bad\.toml is not valid TOML"):
        load(folder / "bad.toml")


@pytest.mark.parametrize("arguments", [{"worker": {"concurency": 3}}, {"workers": {}}])
def test_an_argument_there_is_not_is_refused(folder: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(BadConfig, match="did you mean"):
        load(None, {}, arguments)
