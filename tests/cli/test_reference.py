from __future__ import annotations

from pathlib import Path

import click
import pytest

from millpond.cli.reference import PAGE, commands, page, twin
from millpond.cli.root import COMMANDS
from millpond.config import TWINS

ROOT = Path(__file__).parents[2]


def all_options():
    return [
        (context, option)
        for context, command in commands()
        for option in command.params
        if isinstance(option, click.Option)
    ]


def test_the_page_is_what_the_commands_say():
    written = (ROOT / PAGE).read_text(encoding="utf-8")
    assert written == page(), "run: python -m millpond.cli.reference"


def test_every_command_and_every_option_is_on_the_page():
    text = page()
    for context, command in commands():
        section = text.partition(f"### {context.command_path}\n")[2].partition("\n### ")[0]
        assert section, context.command_path
        for option in command.params:
            for name in option.opts:
                assert name in section or isinstance(option, click.Argument), (name, section)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_what_it_does_as_the_overview_does(name):
    found = {context.info_name: command for context, command in commands()}
    assert (found[name].help or "").strip()


def test_every_option_has_help_and_a_twin():
    for context, option in all_options():
        assert option.help, (context.command_path, option.opts)
        assert twin(context, option).startswith("MILLPOND_")
        assert option.show_envvar


def test_a_variable_means_one_thing():
    meant: dict[str, set[str]] = {}
    for context, option in all_options():
        meant.setdefault(twin(context, option), set()).add(option.name or "")
    assert {name: of for name, of in meant.items() if len(of) > 1} == {}


def test_options_share_the_variables_of_settings_only_where_they_set_the_same():
    same = {
        "MILLPOND_URL": "url",
        "MILLPOND_QUEUES": "queues",
        "MILLPOND_CONCURRENCY": "concurrency",
        "MILLPOND_PROCESSES": "processes",
        "MILLPOND_LOG_FORMAT": "log_format",
        "MILLPOND_LOG_LEVEL": "log_level",
    }
    shared = {
        twin(context, option): option.name
        for context, option in all_options()
        if twin(context, option) in TWINS
    }
    assert shared == same
