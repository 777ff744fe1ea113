"""How others wake the keeper's loop: threads by a bell, processes by a datagram."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path


class Bell:
    """A pipe to oneself: any thread or signal handler rings, the loop hears it once."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._rung = False

    def fileno(self) -> int:
        """Return the descriptor that becomes readable, for a selector."""
        return self._reader

    @property
    def signal_fd(self) -> int:
        """The descriptor for `signal.set_wakeup_fd`."""
        return self._writer

    def ring(self) -> None:
        """Wake the loop; cheap when it was woken already."""
        if not self._rung:
            self._rung = True
            # Full means that it is already readable; closed, that nobody listens any more.
            with contextlib.suppress(OSError):
                os.write(self._writer, b"!")

    def hear(self) -> None:
        """Take the ringing back; look at everything it may announce only after this."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._reader, 4096)) == 4096:  # noqa: PLR2004  one more read
                pass
        self._rung = False

    def close(self) -> None:
        """Give the descriptors back; ringing is harmless afterwards."""
        self._rung = True
        reader, writer = self._reader, self._writer
        self._reader = self._writer = -1
        for fd in (reader, writer):
            if fd >= 0:
                os.close(fd)


class WakeSocket:
    """A datagram socket at a path: enqueuing processes send a byte when a job is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._sock.setblocking(False)
            self._sock.bind(str(path))
        except OSError:
            self._sock.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._sock.fileno()

    def hear(self) -> bytes:
        """Take all wake-ups that have come and return their words: claim, or beat."""
        heard = set()
        with contextlib.suppress(BlockingIOError):
            while True:
                heard.add(self._sock.recv(64))
        return b"".join(heard)

    def close(self) -> None:
        """Stop listening and remove the path."""
        self._sock.close()
        self.path.unlink(missing_ok=True)
