"""Runs one command line of `tidelog` (commands.py), and ends with its exit code (cli/app/errors.py).

Nothing is imported at the top that takes time: Ctrl-C while the rest is loaded must end as quietly as it does later.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from tidelog.import_check import ALL, check_packages

# For which no other command is loaded.
BROKER_COMMANDS = frozenset({"dev", "serve"})
# As in cli/app/errors.py, which is not loaded yet.
INTERRUPTED = 130


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns the exit code. Prints errors on stderr."""
    from tidelog.cli.app.errors import guarded

    if arguments and arguments[0] in BROKER_COMMANDS:
        from tidelog.cli.broker.serve import app
    else:
        from tidelog.cli.commands import app
        from tidelog.cli.completion import COMPLETE_VARIABLE, prepare_completion

        if COMPLETE_VARIABLE in os.environ:  # a shell asks what may come next
            prepare_completion()
    return guarded(lambda: app(list(arguments), prog_name="tidelog", standalone_mode=False))


def main() -> None:
    _open_standard_streams()
    check_packages(*ALL)
    # Brokers and Python workers of Spark that a command starts import nothing from the current folder.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    try:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it tells on stderr what our own errors tell, in its own words
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise SystemExit(code)


def _open_standard_streams() -> None:
    """Opens closed standard streams (`<&-`) on nothing; else the next socket would take their numbers."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: SIM115  # until the process ends


if __name__ == "__main__":
    main()
