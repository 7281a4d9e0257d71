"""The command `tidelog`: runs one command line (commands.py), and ends with its exit code (failure.py).

Nothing is imported at the top that takes time: Ctrl-C while the rest is loaded must end as quietly as it does later.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

INTERRUPTED = 130
"""As in failure.py, which is not loaded yet."""


def run(arguments: Sequence[str]) -> int:
    """One command line; the exit code. Errors were told on stderr."""
    from tidelog.cli.commands import app
    from tidelog.cli.failure import guarded

    return guarded(lambda: app(list(arguments), prog_name="tidelog", standalone_mode=False))


def main() -> None:
    try:
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # it tells on stderr of every connection that a broker closes
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise SystemExit(code)


if __name__ == "__main__":
    main()
