"""Somebody who listens to the shop and does everything once, however often it is told."""

from __future__ import annotations

from app import received


def listen() -> list[str]:
    """Return what there is to do; a message whose id was seen before is a repeat."""
    seen: set[str] = set()
    new = []
    for message in received():
        if message["id"] not in seen:
            seen.add(message["id"])
            new.append(f"{message['order']} is {message['event']}")
    return new


if __name__ == "__main__":
    print(*listen(), sep="\n")
