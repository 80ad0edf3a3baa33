"""`python -m tests.trust.cold HOW`: a program that begins from nothing, for Ctrl-C at any moment.

It says when it begins, and the digest of what it made; then it goes on making it. HOW: `ends` leaves an
interrupt to Python; `goes on` makes everything anew when it has come."""

from __future__ import annotations

import hashlib
import sys

import numpy as np

WANTED = ("loops", "epilogues", "systems", "sorts", "sequences")


def made() -> str:
    """All of it once: compiled, loaded, run."""
    from .signalled import bits, families

    some = families()
    return hashlib.sha256(b"".join(bits(some[name]()) for name in WANTED)).hexdigest()


def main(how: str) -> None:
    print(
        f"begins with NumPy {np.__version__}", flush=True
    )  # whose own import takes interrupts ill
    taken = 0
    import ostinato  # noqa: F401

    while True:
        try:
            print(made(), flush=True)
            while not taken:
                made()
            return
        except KeyboardInterrupt:
            taken += 1
            if how == "ends":
                raise


if __name__ == "__main__":
    main(sys.argv[1])
