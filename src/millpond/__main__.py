"""`python -m millpond` is the command `millpond`."""

from __future__ import annotations

from millpond.cli import main

if __name__ == "__main__":
    main()
