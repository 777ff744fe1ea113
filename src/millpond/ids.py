"""Operation ids: UUIDs of version 7, so that they sort by the moment they were made (RFC 9562)."""

from __future__ import annotations

import os

ENTROPY_BYTES = 10
_LATEST_MS = (1 << 48) - 1


def uuid7(now_ms: int, entropy: bytes | None = None) -> str:
    """Return a UUIDv7 for a moment in milliseconds; `entropy` is 10 bytes, random by default.

    A moment outside the 48 bits of the format counts as its nearest end. Raises ValueError
    for entropy of another length.
    """
    if entropy is None:
        entropy = os.urandom(ENTROPY_BYTES)
    if len(entropy) != ENTROPY_BYTES:
        msg = f"entropy has {len(entropy)} bytes: it must have {ENTROPY_BYTES}"
        raise ValueError(msg)
    return _format(now_ms, int.from_bytes(entropy, "big"))


def uuid7_many(now_ms: int, count: int) -> list[str]:
    """Return `count` UUIDv7 of one moment, from one reading of the random source."""
    pool = os.urandom(ENTROPY_BYTES * count)
    return [
        _format(now_ms, int.from_bytes(pool[at : at + ENTROPY_BYTES], "big"))
        for at in range(0, len(pool), ENTROPY_BYTES)
    ]


def _format(now_ms: int, noise: int) -> str:
    a = noise >> 68 & 0xFFF | 0x7000
    b = noise >> 48 & 0x3FFF | 0x8000
    # A host clock before 1970 must not make an id that is no UUID.
    text = f"{min(max(now_ms, 0), _LATEST_MS):012x}"
    return f"{text[:8]}-{text[8:]}-{a:04x}-{b:04x}-{noise & 0xFFFFFFFFFFFF:012x}"
