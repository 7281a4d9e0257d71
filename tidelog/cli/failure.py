"""How the command line fails: one message on stderr, and an exit code that tells what kind of failure it was.

    0    done
    1    failed
    2    bad usage: the same command line will always fail
    3    unhealthy: the check ran, and found something wrong
    130  interrupted with Ctrl-C

A message says what happened, what was written, and what to do. No traceback, unless TIDELOG_DEBUG=1 asks for it.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Final

from typer.exceptions import Abort, TyperException

from metadata.errors import InvalidArgument, TidelogError

FAILED: Final = 1
BAD_USAGE: Final = 2
UNHEALTHY: Final = 3
INTERRUPTED: Final = 130

EPILOG: Final = "Exit codes: 0 done, 1 failed, 2 bad usage, 3 unhealthy. TIDELOG_DEBUG=1 shows tracebacks."


def guarded(command: Callable[[], object]) -> int:
    """Runs it, tells what went wrong, and answers the exit code."""
    try:
        code = command()
        sys.stdout.flush()
    except Abort:
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_has_enough()
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # typer has met it first
            return _reader_has_enough()
        raise
    except TyperException as error:
        return _tell_usage(error)
    except TidelogError as error:
        _debug(error)
        tell(error)
        return BAD_USAGE if isinstance(error, InvalidArgument) else FAILED
    except OSError as error:
        _debug(error)
        say_error(str(error), [])
        return FAILED
    except Exception as error:  # noqa: BLE001  # the last resort: our own bug must not greet a user with a traceback
        _debug(error)
        say_error(
            f"this is a bug in Tidelog: {type(error).__name__}: {error}", ["Run it again with TIDELOG_DEBUG=1, and report it."]
        )
        return FAILED
    return code if isinstance(code, int) else 0


def _reader_has_enough() -> int:
    """`tidelog consume … | head` is no failure."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # the interpreter flushes it at its end
    return 0


def tell(error: TidelogError) -> None:
    """What happened; what was written, which the commands that write note on their errors; what to do."""
    say_error(error.message, [*getattr(error, "__notes__", ()), *([error.hint] if error.hint else [])])


def say_error(message: str, remedies: list[str]) -> None:
    colours = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    label = "\x1b[1;31mError:\x1b[0m" if colours else "Error:"
    sys.stderr.write(f"{label} {message}\n" + "".join(f"  {remedy}\n" for remedy in remedies))


def _tell_usage(error: TyperException) -> int:
    context = getattr(error, "ctx", None)
    remedies = [f"See: {context.command_path} --help"] if context is not None else ["See: tidelog --help"]
    say_error(error.format_message(), remedies)
    return BAD_USAGE


def _debug(error: BaseException) -> None:
    if os.environ.get("TIDELOG_DEBUG", "") not in {"", "0"}:
        traceback.print_exception(error)
