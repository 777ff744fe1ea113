"""Workers: a keeper that claims and settles, and runners that call the handlers."""

from __future__ import annotations

from millpond.worker.embedded import EmbeddedWorker
from millpond.worker.report import DrainReport
from millpond.worker.running import run_worker
from millpond.worker.shared import WorkerFailed

__all__ = ["DrainReport", "EmbeddedWorker", "WorkerFailed", "run_worker"]
