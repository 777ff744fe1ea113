"""Nudging keepers after a commit: one byte to a datagram socket each.

A nudge is a hint, never a fact: the claim decides, and a lost one costs a poll.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable

from millpond.store.sqlite.names import Names

CLAIM = b"!"
BEAT = b"?"

AT_MOST = 8
"""Keepers told of one commit; more would only meet at the write lock."""


class Waker:
    """Sends nudges; opens its one socket at the first."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def nudge(self, names: Names, tasks: Iterable[int]) -> None:
        """Nudge the keepers that serve these tasks; those that are gone are not tried again."""
        paths: dict[str, None] = {}
        for task in tasks:
            for path, _, _ in names.wake.get(task, ()):
                if len(paths) < AT_MOST:
                    paths[path] = None
        for path in paths:
            if not self._send(path):
                for task, known in names.wake.items():
                    names.wake[task] = [entry for entry in known if entry[0] != path]

    def call(self, paths: Iterable[str]) -> None:
        """Tell keepers that a beat would bring them news; one that is gone learns nothing."""
        for path in paths:
            self._send(path, BEAT)

    def _send(self, path: str, word: bytes = CLAIM) -> bool:
        if not hasattr(socket, "AF_UNIX"):
            return False
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        try:
            self._socket.sendto(word, path)
        except BlockingIOError:
            return True  # its buffer is full: it has been nudged already
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the socket."""
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()
