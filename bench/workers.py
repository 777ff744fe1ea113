"""A worker process of the benchmarks' application: keeper and one runner."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from bench.children import ROOT
from millpond.config import WorkerConfig
from millpond.worker import run_worker

BATCH = 256
END_S = 60.0


def start(
    url: Path, *, drain: bool = False, concurrency: int = 4, processes: int = 1, app: str = "app"
) -> subprocess.Popen[str]:
    """Start a worker on the store; with `drain` it ends when nothing is ready any more."""
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "bench.workers",
            str(int(drain)),
            str(concurrency),
            str(processes),
            app,
        ],
        cwd=ROOT,
        env={**os.environ, "MILLPOND_URL": str(url)},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(worker: subprocess.Popen[str], limit_s: float) -> str:
    """Wait for its end and return its last words; raises RuntimeError when it failed."""
    try:
        _, said = worker.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.communicate()
        raise
    if worker.returncode != 0:
        msg = f"the worker ended with code {worker.returncode}: {said[-2000:]}"
        raise RuntimeError(msg)
    return said


def stop(worker: subprocess.Popen[str]) -> None:
    """Tell a worker to stop and wait for its end."""
    if worker.poll() is None:
        worker.terminate()
    finish(worker, END_S)


def processes(worker: subprocess.Popen[str]) -> dict[str, int]:
    """Return the process ids of keeper and runner."""
    task = Path(f"/proc/{worker.pid}/task/{worker.pid}/children")
    ends = time.monotonic() + END_S
    while time.monotonic() < ends:
        children = task.read_text(encoding="ascii").split()
        if children:
            return {"keeper": worker.pid, "runner": int(children[0])}
        time.sleep(0.01)
    msg = "the worker has not started its runner"
    raise RuntimeError(msg)


if __name__ == "__main__":
    config = WorkerConfig(concurrency=int(sys.argv[2]), processes=int(sys.argv[3]), batch=BATCH)
    sys.exit(run_worker(f"bench.{sys.argv[4]}:pond", config, drain=sys.argv[1] == "1"))
