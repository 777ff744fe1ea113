"""The checks that settings share; each raises BadConfig with name, value and what is allowed."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable

from millpond.errors import BadConfig, refuse_setting
from millpond.policy.backoff import LONGEST_MS

NAME_LIMIT = 200

MOST = (1 << 63) - 1
"""The largest number that a database column holds."""

_SEPARATORS = frozenset("/:,")


def check_int(name: str, value: object, least: int, most: int = MOST) -> None:
    """Refuse what is no integer from `least` to `most`."""
    # True and False are integers to Python, and mistakes here.
    plain = isinstance(value, int) and not isinstance(value, bool)
    if not (plain and least <= value <= most):  # type: ignore[operator]
        end = "" if most == MOST else f" and at most {most}"
        refuse_setting(name, value, f"an integer, at least {least}{end}")


def check_optional_int(name: str, value: object, least: int, most: int = MOST) -> None:
    """Refuse what is neither None nor an integer from `least` to `most`."""
    if value is not None:
        check_int(name, value, least, most)


def check_length(name: str, value: object, least: int = 0) -> None:
    """Refuse what is no number of whole milliseconds from `least` to ten years."""
    plain = isinstance(value, int) and not isinstance(value, bool)
    if not (plain and least <= value <= LONGEST_MS):  # type: ignore[operator]
        refuse_setting(name, value, f"whole milliseconds from {least} to {LONGEST_MS} (ten years)")


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        refuse_setting(name, value, "True or False")


def check_choice(
    name: str, value: object, choices: Collection[str], later: Collection[str] = ()
) -> None:
    """Refuse what is none of `choices`; those of `later` are known and not available yet."""
    if isinstance(value, str) and value in choices:
        return
    words = ", ".join(repr(choice) for choice in choices)
    if isinstance(value, str) and value in later:
        refuse_setting(name, value, f"one of {words}; {value!r} is not available yet")
    refuse_setting(name, value, f"one of {words}")


def check_name(name: str, value: object) -> None:
    """Refuse what cannot name a task, queue or workload in a command, an address or a file.

    Allowed are 1 to 200 characters without control characters, without blanks at the ends,
    and without "/", ":" and ",", which separate names on the command line.
    """
    if not (isinstance(value, str) and _sound_name(value)):
        allowed = (
            f"a text of 1 to {NAME_LIMIT} characters without control characters, "
            "blanks at its ends, '/', ':' and ','"
        )
        refuse_setting(name, value, allowed)


def check_text(name: str, value: object) -> None:
    """Refuse what is neither None nor text that can be stored; any length will do."""
    if value is not None and not (isinstance(value, str) and is_utf8(value)):
        refuse_setting(name, value, "text of valid Unicode")


def check_who(by: object, note: object = None) -> None:
    """Refuse what cannot be kept as who acted and why."""
    check_text("by", by)
    check_text("note", note)


def is_utf8(text: str) -> bool:
    """Whether a text can be written as UTF-8: half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse_unknown(at: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse options there are not, with the closest name there is; `at` says where they stand."""
    for option in given:
        if option in known:
            continue
        import difflib  # only a mistake pays for it

        close = difflib.get_close_matches(str(option), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(known))}"
        msg = f"{at}there is no option {str(option)[:NAME_LIMIT]!r}: {hint}"
        raise BadConfig(msg)


def _sound_name(value: str) -> bool:
    return (
        0 < len(value) <= NAME_LIMIT
        and value == value.strip()
        and _SEPARATORS.isdisjoint(value)
        # Cc: control characters; Cs: lone surrogates, which no database column holds.
        and all(unicodedata.category(char) not in {"Cc", "Cs"} for char in value)
    )
