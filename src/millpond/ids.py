"""Operation ids: UUIDs of version 7, so that they sort by the moment they were made (RFC 9562)."""

from __future__ import annotations

import os


def uuid7(now_ms: int, entropy: bytes | None = None) -> str:
    """Return a UUIDv7 for a moment in milliseconds; `entropy` is 10 bytes, random by default."""
    noise = int.from_bytes(entropy or os.urandom(10), "big")
    return _format(now_ms, noise)


def uuid7_many(now_ms: int, count: int) -> list[str]:
    """Return `count` UUIDv7 of one moment, from one reading of the random source."""
    pool = os.urandom(10 * count)
    return [
        _format(now_ms, int.from_bytes(pool[at : at + 10], "big"))
        for at in range(0, 10 * count, 10)
    ]


def _format(now_ms: int, noise: int) -> str:
    a = noise >> 68 & 0xFFF | 0x7000
    b = noise >> 48 & 0x3FFF | 0x8000
    text = f"{now_ms:012x}"
    return f"{text[:8]}-{text[8:]}-{a:04x}-{b:04x}-{noise & 0xFFFFFFFFFFFF:012x}"
