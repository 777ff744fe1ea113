"""The link between keeper and runner: a pair of sockets, or two queues in one process.

On the wire a message is a length of four bytes and a msgpack list of frames. The keeper's
end never blocks: what the socket does not take waits in a buffer until it is writable. The
runner's end reads in one thread and writes in another, so neither side can wait for the
other to read.
"""

from __future__ import annotations

import socket
import struct
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from millpond.worker.frames import ToKeeper, ToRunner

_LENGTH = struct.Struct(">I")
_CHUNK = 1 << 18
_BUFFER = 1 << 20
_LONGEST = 1 << 26
"""Bytes of one message: more can only be a broken length."""


class Link(Protocol):
    """The keeper's end."""

    def send(self, frame: ToRunner) -> None:
        """Hand a frame over without waiting; after the end of the link it is dropped."""
        ...

    def receive(self) -> list[ToKeeper]:
        """Return what has arrived since, without waiting."""
        ...

    def close(self) -> None:
        """End the link, which ends the runner."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the runner's end is gone; everything it sent has then been received."""
        ...


class MemoryLink:
    """A link inside one process: frames are handed on as they are, nothing is encoded.

    `ring` wakes the keeper after the runner has answered.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._answers: deque[ToKeeper] = deque()
        self._deliver: Callable[[ToRunner], None] | None = None
        self.ended = False

    def connect(self, deliver: Callable[[ToRunner], None]) -> None:
        """Name what takes the keeper's frames."""
        self._deliver = deliver

    def answer(self, frame: ToKeeper) -> None:
        """Send a frame to the keeper, from any thread."""
        self._answers.append(frame)
        self._ring()

    def send(self, frame: ToRunner) -> None:
        """Hand a frame to the runner in this thread."""
        if not self.ended and self._deliver is not None:
            self._deliver(frame)

    def receive(self) -> list[ToKeeper]:
        """Return what the runner has answered."""
        answers = self._answers
        return [answers.popleft() for _ in range(len(answers))]

    def close(self) -> None:
        """End the link; what the runner still says can be received."""
        self.ended = True


class PipeLink:
    """The keeper's end of a socket pair."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list[ToKeeper]).decode
        self.ended = False

    def fileno(self) -> int:
        """Return the socket's descriptor, for a selector."""
        return self._sock.fileno()

    @property
    def unsent(self) -> bool:
        """Whether something waits until the socket is writable."""
        return bool(self._outgoing)

    def send(self, frame: ToRunner) -> None:
        """Encode a frame, send what the socket takes now and keep the rest."""
        if self.ended:
            return
        body = self._encode([frame])
        self._outgoing += _LENGTH.pack(len(body)) + body
        self.flush()

    def flush(self) -> None:
        """Send as much as the socket takes."""
        try:
            while self._outgoing:
                sent = self._sock.send(self._outgoing)
                del self._outgoing[:sent]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            # The reading side finds out the same and still reads what the runner had sent.
            self._outgoing.clear()

    def receive(self) -> list[ToKeeper]:
        """Read all that has arrived and return the complete messages' frames."""
        self._read()
        frames: list[ToKeeper] = []
        try:
            for body in _messages(self._incoming):
                frames += self._decode(body)
        except (ValueError, msgspec.MsgspecError):
            # Something in the runner wrote into our socket: this runner cannot be understood
            # any more, and ends; the others go on.
            self._incoming.clear()
            self.ended = True
        return frames

    def close(self) -> None:
        """Close the socket: the runner reads the end and ends itself."""
        self.ended = True
        self._outgoing.clear()
        self._sock.close()

    def _read(self) -> None:
        full = True
        # A chunk that is not full was the last one; to ask for more would cost a system call.
        while full and not self.ended:
            try:
                chunk = self._sock.recv(_CHUNK)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                chunk = b""
            self._incoming += chunk
            self.ended = not chunk
            full = len(chunk) == _CHUNK


class RunnerPipe:
    """The runner's end of a socket pair: one thread reads, another sends what gathers.

    The sender takes all that waits at once, so batches form while it is busy and a lone
    outcome is sent at once. `broken` is called when nothing can be sent any more.

    When it is `prompt`, `answer` sends by itself and returns when the keeper surely gets the
    frame, even if this process dies in the next moment.
    """

    def __init__(
        self, sock: socket.socket, broken: Callable[[], None], *, prompt: bool = False
    ) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._broken = broken
        self._waiting: list[ToKeeper] = []
        self._news = threading.Condition()
        self._closing = False
        self._encode = msgspec.msgpack.Encoder().encode
        self._prompt = prompt
        self._sender = threading.Thread(target=self._send, name="millpond-link", daemon=True)
        if not prompt:
            self._sender.start()

    def answer(self, frame: ToKeeper) -> None:
        """Send a frame to the keeper, from any thread; order is kept."""
        with self._news:
            if self._prompt:
                self._guarded(lambda: self._transmit([frame]))
                return
            self._waiting.append(frame)
            if len(self._waiting) == 1:
                self._news.notify()

    def frames(self) -> Iterator[ToRunner]:
        """Yield the keeper's frames until the link ends."""
        decode = msgspec.msgpack.Decoder(list[ToRunner]).decode
        with self._sock.makefile("rb") as stream:
            while len(head := stream.read(_LENGTH.size)) == _LENGTH.size:
                (length,) = _LENGTH.unpack(head)
                body = stream.read(length)
                if len(body) < length:
                    return
                yield from decode(body)

    def finish(self, timeout: float) -> None:
        """Send what still waits, then close; at most `timeout` seconds."""
        with self._news:
            self._closing = True
            self._news.notify()
        if not self._prompt:
            self._sender.join(timeout)
        self._sock.close()

    def _send(self) -> None:
        self._guarded(self._send_all)

    def _send_all(self) -> None:
        while batch := self._take():
            self._transmit(batch)

    def _transmit(self, batch: list[ToKeeper]) -> None:
        body = self._encode(batch)
        self._sock.sendall(_LENGTH.pack(len(body)) + body)

    def _guarded(self, send: Callable[[], None]) -> None:
        try:
            send()
        except OSError:
            self._broken()
        except BaseException:  # noqa: BLE001  reported, and the process ends
            # A runner that works and cannot tell would be worse than one that ends.
            traceback.print_exc()
            self._broken()

    def _take(self) -> list[ToKeeper]:
        with self._news:
            while not self._waiting and not self._closing:
                self._news.wait()
            batch, self._waiting = self._waiting, []
            return batch


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets with room for some thousand jobs under way."""
    pair = socket.socketpair()
    for sock in pair:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    return pair


def _messages(buffer: bytearray) -> Iterator[bytes]:
    start = 0
    while len(buffer) - start >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(buffer, start)
        if length > _LONGEST:
            msg = f"the link carries a message of {length:,} bytes: it is out of step"
            raise ValueError(msg)
        end = start + _LENGTH.size + length
        if len(buffer) < end:
            break
        yield bytes(buffer[start + _LENGTH.size : end])
        start = end
    del buffer[:start]
