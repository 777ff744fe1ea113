from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.config import SqliteAddress, StoreConfig, default_url, parse_url, shown_url
from millpond.errors import BadConfig


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("app.db", "app.db"),
        ("./app.db", "./app.db"),
        ("/var/lib/app.db", "/var/lib/app.db"),
        (" app.db\n", "app.db"),
        (r"C:\data\app.db", r"C:\data\app.db"),
        ("C:/data/app.db", "C:/data/app.db"),
        ("with space/ü.db", "with space/ü.db"),
        ("./notes:2024.db", "./notes:2024.db"),
        ("sqlite:///app.db", "app.db"),
        ("sqlite:////var/app.db", "/var/app.db"),
        ("SQLITE:///app.db", "app.db"),
        ("sqlite:///C:/app.db", "C:/app.db"),
        (":memory:", ":memory:"),
        ("sqlite://", ":memory:"),
        ("sqlite:///:memory:", ":memory:"),
    ],
)
def test_a_path_and_an_sqlite_address_name_a_file(url: str, path: str) -> None:
    address = parse_url(url)
    assert address == SqliteAddress(path)
    assert address.memory == (path == ":memory:")


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert parse_url("~/app.db").path == str(Path("/home/ann/app.db"))
    assert parse_url("sqlite:///~/app.db").path == str(Path("/home/ann/app.db"))


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg", "POSTGRESQL"])
def test_postgresql_is_refused_as_missing_and_no_password_is_shown(scheme: str) -> None:
    with pytest.raises(BadConfig, match="no PostgreSQL engine yet") as caught:
        parse_url(f"{scheme}://ann:se@cret@db.example/app?password=se@cret\n")
    assert "cret" not in str(caught.value)
    assert "db.example/app" in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "  ",
        "a\x00b.db",
        "a\nb.db",
        "mysql://ann:secret@host/db",
        "redis:6379",
        "file:app.db",
        "sqlite:app.db",
        "sqlite:/app.db",
        "sqlite://host/app.db",
        "sqlite:///",
        "sqlite:///app.db?mode=ro",
        "sqlite:///app.db#x",
        "~nobody-of-this-name/app.db",
    ],
)
def test_an_address_of_another_kind_is_refused_with_those_there_are(url: str) -> None:
    with pytest.raises(BadConfig, match=r"^the store's address is .*: it must be ") as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)


@given(st.text())
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = parse_url(text)
    except BadConfig:
        return
    assert address.path
    assert "\x00" not in address.path


@given(st.text("ab1:@/?#", max_size=12))
def test_a_shown_address_never_holds_the_password(password: str) -> None:
    marked = f"{password}SECRET"
    if "?" in password or "/" in password:
        # Both end a password in an address; what follows is no longer one.
        marked = marked.replace("?", "").replace("/", "")
    assert "SECRET" not in shown_url(f"postgresql://ann:{marked}@host/db?x=1")


@pytest.mark.parametrize(
    ("env", "url"),
    [
        ({}, "./millpond.db"),
        ({"MILLPOND_URL": ""}, "./millpond.db"),
        ({"MILLPOND_URL": "sqlite:///x.db"}, "sqlite:///x.db"),
    ],
)
def test_the_default_is_the_environment_then_a_file_in_this_folder(
    env: dict[str, str], url: str
) -> None:
    assert default_url(env) == url


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("busy_ms", -1),
        ("synchronous", "off"),
        ("synchronous", None),
        ("sqlite", "apsw"),
        ("strict_safety", 1),
        ("allow_network_fs", "no"),
        ("max_payload", 0),
        ("max_result", 1 << 30),
        ("inbox", 0),
        ("checkpoint_pages", 0),
        ("url", None),
    ],
)
def test_a_store_that_cannot_work_is_refused_with_the_setting(setting: str, value: Any) -> None:
    with pytest.raises(BadConfig, match=rf"^store\.{setting} is .*: it must be "):
        StoreConfig(**{setting: value})


def test_a_store_knows_its_address() -> None:
    assert StoreConfig("sqlite:////x.db").address == SqliteAddress("/x.db")
