"""`millpond doctor`, `verify` and `reconcile`: care of the data."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from millpond.cli.exits import Code, end
from millpond.cli.options import Place, at_store, json_option, option
from millpond.cli.screen import Table, print_json, say, show
from millpond.cli.words import plural

if TYPE_CHECKING:
    from millpond.model import Drift
    from millpond.store.upkeep import Finding


@click.command()
@json_option
@at_store
def verify(at: Place, /, *, as_json: bool) -> None:
    """Check the file, every job's state and every counter; exit code 5 when something is wrong.

    Reads everything, and changes nothing. Workers may go on.
    """
    with at.existing() as pond:
        wrong = pond.verify()
    if as_json:
        print_json({"ok": not wrong, "problems": wrong})
    elif wrong:
        say(*wrong)
        say(f"{plural(len(wrong), 'problem')}; see `millpond doctor`, and keep a copy of the file")
    else:
        say("clean: the file, every job and every counter are as they should be")
    end(Code.UNHEALTHY if wrong else Code.OK)


@click.command()
@option("--repair", is_flag=True, help="Set the counters to what was counted.")
@json_option
@at_store
def reconcile(at: Place, /, *, repair: bool, as_json: bool) -> None:
    """Recount all counters under the write lock; exit code 5 when some differ and stay so.

    Writers wait meanwhile: about a second for a million waiting jobs.
    """
    with at.existing() as pond:
        drift = pond.reconcile(repair=repair)
    if as_json:
        print_json({"drift": [asdict(each) for each in drift], "repaired": repair and bool(drift)})
    else:
        _show_drift(drift, repair=repair)
    end(Code.UNHEALTHY if drift and not repair else Code.OK)


def _show_drift(drift: list[Drift], *, repair: bool) -> None:
    if not drift:
        say("no drift: every counter is what a recount gives")
        return
    table = Table(("counter", "of", "says", "counted"), frozenset({"says", "counted"}))
    for each in drift:
        table.add(each.what, each.which, each.counter, each.counted)
    show(table)
    count = plural(len(drift), "counter")
    say(f"{count} mended" if repair else f"{count} differ: mend them with --repair")


@click.command()
@json_option
@at_store
def doctor(at: Place, /, *, as_json: bool) -> None:
    """Look for what is wrong or risky: place, library, schema, plans, settings, counters, workers.

    Each finding comes with its cure. Exit code 5 when one of them is serious, 6 when that is
    the schema's number.
    """
    from millpond.cli.checkup import examine

    findings, code = examine(at.config())
    if as_json:
        told = [{**asdict(each), "severity": _severity(each)} for each in findings]
        print_json({"healthy": code is Code.OK, "findings": told})
        end(code)
    for finding in findings:
        where = f" ({finding.which})" if finding.which else ""
        say(f"{_severity(finding):<7}  {finding.what}{where}")
        if finding.cure:
            say(f"         {finding.cure}")
    bad = sum(_severity(finding) != "ok" for finding in findings)
    say("", f"{plural(len(findings), 'finding')}, {bad} to look at")
    end(code)


def _severity(finding: Finding) -> str:
    """Say a severity from the reader's side: the gate refuses what is serious."""
    return "serious" if finding.severity == "refuse" else finding.severity.value
