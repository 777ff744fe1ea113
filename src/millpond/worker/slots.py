"""A group of slots: how many jobs run at once, shared by threads and the event loop.

One line of jobs, in the order they were fed. A free slot takes the first of the line: a
thread, made when first needed, runs a plain handler; an async one goes to the loop. Slots
are counted under one lock, which a thread takes once a job: it gives its slot back and takes
the next job in the same breath.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable

from millpond.worker.frames import Fed


class Slots:
    """`size` places to run a job; `run` runs one in a thread, `start` sends some to the loop.

    `run` must not raise. `asynchronous` are the names of the tasks that belong on the loop.
    """

    def __init__(
        self,
        size: int,
        run: Callable[[Fed], None],
        start: Callable[[list[Fed]], None],
        asynchronous: Collection[str],
        name: str = "millpond-slot",
    ) -> None:
        self.size = size
        self._run = run
        self._start = start
        self._async = asynchronous
        self._name = name
        self._lock = threading.Lock()
        self._ready = threading.Condition(self._lock)
        self._line: deque[Fed] = deque()
        self._free = size
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many jobs have not started."""
        return len(self._line)

    @property
    def busy(self) -> int:
        """How many slots are taken."""
        return self.size - self._free

    def put(self, jobs: Iterable[Fed]) -> None:
        """Append jobs to the line and start what has a free slot."""
        with self._lock:
            self._line.extend(jobs)
            self._hand_to_loop()
            self._call_thread()

    def drop(self, claims: Collection[int] | None) -> list[int]:
        """Take jobs (None: all) out of the line; they will never start here. Their claims."""
        with self._lock:
            dropped = [
                job.claim.token.claim
                for job in self._line
                if claims is None or job.claim.token.claim in claims
            ]
            if dropped:
                gone = set(dropped)
                self._line = deque(j for j in self._line if j.claim.token.claim not in gone)
                self._hand_to_loop()
                self._call_thread()
            return dropped

    def release(self) -> list[Fed]:
        """Give back the slot of an async job; returns the jobs that the loop starts now."""
        with self._lock:
            self._free += 1
            started = self._take_async()
            self._call_thread()
            return started

    def close(self) -> None:
        """Let the threads end after their present job."""
        with self._lock:
            self._closed = True
            self._idle = 0
            self._ready.notify_all()

    def join(self, deadline: Callable[[], float]) -> bool:
        """Wait for the threads, each for what `deadline` has left; tell whether all ended."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        job = self._next(finished=False)
        while job is not None:
            self._run(job)
            job = self._next(finished=True)

    def _next(self, *, finished: bool) -> Fed | None:
        with self._lock:
            self._free += finished
            while True:
                self._hand_to_loop()
                if self._line and self._free and not self._closed:
                    self._free -= 1
                    job = self._line.popleft()
                    self._hand_to_loop()
                    self._call_thread()
                    return job
                if self._closed:
                    return None
                # Whoever wakes this thread also counts it out.
                self._idle += 1
                self._ready.wait()

    def _hand_to_loop(self) -> None:
        started = self._take_async()
        if started:
            self._start(started)

    def _take_async(self) -> list[Fed]:
        started: list[Fed] = []
        line = self._line
        while line and self._free and line[0].claim.task in self._async and not self._closed:
            self._free -= 1
            started.append(line.popleft())
        return started

    def _call_thread(self) -> None:
        """Wake or make one thread for a plain job at the head; it calls the next in turn."""
        if not (self._line and self._free) or self._closed:
            return
        if self._idle:
            self._idle -= 1
            self._ready.notify()
        elif len(self._threads) < self.size:
            number = len(self._threads) + 1
            thread = threading.Thread(target=self._work, name=f"{self._name}-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()
