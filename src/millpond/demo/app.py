"""The application of the demo: three queues, a few tasks. Its store is the one of MILLPOND_URL."""

from __future__ import annotations

import time
from calendar import month_name
from typing import Any

from millpond import Backoff, Context, Millpond
from millpond.demo import report

SOON = Backoff(base=0.2, cap=1, jitter="none")

LEASE_S = 2.0
"""Short, so that the work of a killed worker comes back while somebody watches."""

MONTH_S = 0.25
"""How long a month of a report takes: a year is long enough to be killed in."""

pond = Millpond()
pond.queue("alerts", order="strict")
pond.queue("thumbnails")
pond.queue("reports", order="ageing")


@pond.task(queue="alerts", priority=10, lease=LEASE_S, retry=SOON)
def send_alert(number: int) -> str:
    """Stand for something that must not wait."""
    time.sleep(0.005)
    return f"alert {number} sent"


@pond.task(queue="thumbnails", lease=LEASE_S, retry=SOON)
def make_thumbnail(picture: int, *, ctx: Context) -> str:
    """Stand for short work on a service that now and then is not there."""
    time.sleep(0.02)
    if picture % 20 == 0 and ctx.attempt == 1:
        raise ConnectionError(f"the picture server did not answer for picture {picture}")
    return f"thumbnail of picture {picture}"


@pond.task(queue="reports", lease=LEASE_S, retry=SOON)
def build_report(number: int, months: int, *, ctx: Context) -> dict[str, Any]:
    """Make a report month by month; a month that an attempt has finished is not made again."""
    folder = report.REPORTS / str(ctx.job_id)
    made: dict[str, int] = dict(ctx.remembered or {})
    for month in range(1, months + 1):
        ctx.check_cancelled()
        if str(month) not in made:
            report.write_month(folder, number, month, lambda: time.sleep(MONTH_S))
            made[str(month)] = ctx.attempt
            ctx.remember(made)
        ctx.progress(month, months, month_name[month])
    table = report.put_together(folder, number, range(1, months + 1))
    return {"file": str(table), "made": made}
