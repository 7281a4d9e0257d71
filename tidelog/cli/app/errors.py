"""Reports failures of the command line: one message on stderr, and an exit code for the kind of failure.

    0    done
    1    failed
    2    bad usage: the same command line will always fail
    3    unhealthy: the check ran, and found something wrong
    130  interrupted with Ctrl-C

A message says what happened, what was written, and what to do. No traceback, unless TIDELOG_DEBUG=1 asks for it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable
from typing import Any, Final

from typer.exceptions import Abort, TyperException

from metadata.errors import InvalidArgument, TidelogError

FAILED: Final = 1
BAD_USAGE: Final = 2
UNHEALTHY: Final = 3
INTERRUPTED: Final = 130
# One that looks like the URL or the directory of a bucket.
_EXTRA: Final = re.compile(r"Got unexpected extra argument(?:\(s\)|s)? \((?P<argument>\S*[/:]\S*)\)")


def guarded(command: Callable[[], object]) -> int:
    """Runs it, tells what went wrong, and answers the exit code."""
    try:
        code = _ungrouped(command)
        sys.stdout.flush()
    except Abort as abort:  # a question that was not answered
        if isinstance(abort.__context__, KeyboardInterrupt):
            return INTERRUPTED
        sys.stderr.write("\nnot answered: nothing was changed\n")
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
        return _show_usage(error)
    except TidelogError as error:
        _debug(error)
        register(error)
        return BAD_USAGE if isinstance(error, InvalidArgument) else FAILED
    except OSError as error:
        _debug(error)
        what = error.strerror or str(error)
        say_error(f"{error.filename}: {what}" if error.filename else f"reading or writing failed: {what}", [])
        _drop_what_stdout_refuses()
        return FAILED
    except Exception as error:  # noqa: BLE001  # the last resort: our own bug must not greet a user with a traceback
        _debug(error)
        say_error(
            f"this is a bug in Tidelog: {type(error).__name__}: {error}", ["Run it again with TIDELOG_DEBUG=1, and report it."]
        )
        return FAILED
    return code if isinstance(code, int) else 0


def _ungrouped(command: Callable[[], object]) -> object:
    """Runs a command. Raises the first error of an exception group, since a user needs one cause."""
    try:
        return command()
    except BaseExceptionGroup as group:
        from tidelog.tasks import first_error

        raise first_error(group) from group


def _reader_has_enough() -> int:
    """`tidelog consume … | head` is no failure."""
    _leave_stdout()
    return 0


def _drop_what_stdout_refuses() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        _leave_stdout()


def _leave_stdout() -> None:
    """Redirects stdout, since the interpreter would flush it at its end and report the same failure in its own words."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # until the process ends


def register(error: TidelogError) -> None:
    """Prints an error: what happened, the notes on what was written, and the remedy."""
    say_error(error.message, [*getattr(error, "__notes__", ()), *([error.hint] if error.hint else [])])


def say_error(message: str, remedies: list[str]) -> None:
    """Prints an error. On a terminal it wraps between words only, so that commands can be copied."""
    terminal = sys.stderr.isatty()
    label = "Error:"
    lines = [f"{label} {message}", *(f"  {remedy}" for remedy in remedies)]
    if terminal:
        lines = [wrapped for line in lines for wrapped in _wrapped(line, shutil.get_terminal_size().columns)]
    text = "\n".join(lines) + "\n"
    if terminal and "NO_COLOR" not in os.environ:
        text = f"\x1b[1;31m{label}\x1b[0m" + text.removeprefix(label)
    sys.stderr.write(text)


def _wrapped(line: str, width: int) -> list[str]:
    """Wraps a message, and keeps its own line breaks."""
    return [
        piece
        for part in line.split("\n")
        for piece in textwrap.wrap(part, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) or [""]
    ]


def _show_usage(error: TyperException) -> int:
    context = getattr(error, "ctx", None)
    remedies = [f"See: {context.command_path} --help"] if context is not None else ["See: tidelog --help"]
    if near := getattr(error, "possibilities", None):
        remedies.insert(0, f"Did you mean {' or '.join(near)}?")
    if getattr(error, "option_name", "") == "--context":
        remedies.insert(0, "It stands before the command: tidelog --context NAME …")
    message = getattr(error, "message", "") if near else error.format_message()
    if (found := _EXTRA.fullmatch(message)) and _takes(context, "--bucket"):
        remedies.insert(0, f"The bucket is an option: --bucket {found['argument']}")
    say_error(" ".join(message.split()).replace("Value error, ", ""), remedies)
    return BAD_USAGE


def _takes(context: Any, option: str) -> bool:
    return context is not None and any(option in parameter.opts for parameter in context.command.params)


def _debug(error: BaseException) -> None:
    if os.environ.get("TIDELOG_DEBUG", "") not in {"", "0"}:
        traceback.print_exception(error)
