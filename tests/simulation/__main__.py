"""`python -m tests.simulation`: see many_worlds.py, which is apart so that the processes it starts can import it."""

from __future__ import annotations

import os
import sys

from tests.simulation.many_worlds import main


def _with_a_fixed_hash_seed() -> None:
    """Sets of strings iterate by it: a seed is only the same run again when it is the same too."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})


if __name__ == "__main__":
    _with_a_fixed_hash_seed()
    sys.exit(main(sys.argv[1:]))
