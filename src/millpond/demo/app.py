"""The application of the demo: three queues, a few tasks. Its store is the one of MILLPOND_URL."""

from __future__ import annotations

import time

from millpond import Backoff, Context, Millpond

SOON = Backoff(base=0.2, cap=1, jitter="none")

LEASE_S = 2.0
"""Short, so that the work of a killed worker comes back while somebody watches."""

REPORT_STEPS = 30
"""Steps of a tenth of a second: long enough to be killed in."""

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
def build_report(number: int, steps: int = REPORT_STEPS, *, ctx: Context) -> str:
    """Stand for long work: it tells how far it is, and can be stopped."""
    for step in range(1, steps + 1):
        ctx.check_cancelled()
        time.sleep(0.1)
        ctx.progress(step, steps, f"page {step}")
    return f"report {number}, {steps} pages"
