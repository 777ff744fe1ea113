"""Operation ids: UUIDs of version 7, so that they sort by the moment they were made (RFC 9562)."""

from __future__ import annotations

import os

ENTROPY_BYTES = 10
_LATEST_MS = (1 << 48) - 1
_VARIANT = {f"{digit:x}": "89ab"[digit & 3] for digit in range(16)}


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
    return _format(_head(now_ms), entropy.hex())


def uuid7_many(now_ms: int, count: int) -> list[str]:
    """Return `count` UUIDv7 of one moment, from one reading of the random source."""
    head, step = _head(now_ms), 2 * ENTROPY_BYTES
    digits = os.urandom(ENTROPY_BYTES * count).hex()
    return [_format(head, digits[at : at + step]) for at in range(0, len(digits), step)]


def _head(now_ms: int) -> str:
    """Return what all ids of a moment begin with, up to the version."""
    # A host clock before 1970 must not make an id that is no UUID.
    text = f"{min(max(now_ms, 0), _LATEST_MS):012x}"
    return f"{text[:8]}-{text[8:]}-7"


def _format(head: str, noise: str) -> str:
    # Digits are cut out of the noise; the two bits of the variant replace those of one digit.
    return f"{head}{noise[:3]}-{_VARIANT[noise[4]]}{noise[5:8]}-{noise[8:]}"
