"""Formats typer's help pages without panels: they fit 80 columns, can be copied from, and load nothing.

Added to them: commands stand under headings, a value is named by its metavar or by its option, choices are listed although there is
a metavar, the exit codes stand at the end. typer takes the colours away if no terminal shows them.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from tidelog.cli.app.credential_options import credential_options
from tidelog.cli.app.errors import BAD_USAGE

WIDTH_MAX: Final = 100
EXIT_CODES: Final = (
    "\b\nExit codes: 0 done, 1 failed, 2 bad usage, 3 unhealthy, 130 interrupted.\n"
    "TIDELOG_DEBUG=1 shows tracebacks. NO_COLOR=1 takes the colours away."
)
_BOLD, _CYAN, _PLAIN = "\x1b[1m", "\x1b[36m", "\x1b[0m"
_EXTRA = re.compile(r" *\[(?P<extra>[^\[\]]*)\]$")


class _Page:
    """The common part of the help pages of commands and of groups."""

    epilog: str | None

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Returns the arguments in capitals: typer writes {TOPIC} for what must be given."""
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]  # of typer's class
        return [re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), piece) for piece in pieces]

    def get_help(self, ctx: Any) -> str:
        ctx.max_content_width = WIDTH_MAX
        self.epilog = EXIT_CODES
        return super().get_help(ctx)  # type: ignore[misc, no-any-return]  # of typer's class

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):  # type: ignore[attr-defined]  # of typer's class
            row = _argument_row(parameter, ctx) if isinstance(parameter, TyperArgument) else _option_row(parameter, ctx)
            rows["Arguments" if isinstance(parameter, TyperArgument) else "Options"].append(row)
        for heading, found in rows.items():
            _write_section(formatter, heading, found)


class CommandPage(_Page, TyperCommand):
    """A command with such a page: `@app.command(cls=CommandPage)`. One that has --url has the options of credentials as well."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if any("--url" in parameter.opts for parameter in self.params):
            last = 1 + next(at for at, parameter in enumerate(self.params) if "--url" in parameter.opts)
            self.params[last:last] = credential_options()


class GroupPage(_Page, TyperGroup):
    """A group of commands with such a page: `Typer(cls=GroupPage)`."""

    # Names of its commands under headings; what is under none stands under "Commands".
    sections: ClassVar[Mapping[str, Sequence[str]]] = {}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Shows the page on stderr if the command line asks for nothing."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(BAD_USAGE)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        shown = {name: found for name in self.list_commands(ctx) if (found := self.get_command(ctx, name)) and not found.hidden}
        grouped = {name for names in self.sections.values() for name in names}
        width = max(map(len, shown), default=0)
        for heading, names in {**self.sections, "Commands": [name for name in shown if name not in grouped]}.items():
            summaries = [(name.ljust(width), _first_paragraph(shown[name].help or "")) for name in names if name in shown]
            _write_section(formatter, heading, summaries)
        super().format_options(ctx, formatter)


def _write_section(formatter: Any, heading: str, rows: Iterable[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(_styled(_BOLD, heading)):
            formatter.write_dl([(_styled(_CYAN, name), text) for name, text in rows])


def _first_paragraph(text: str) -> str:
    return " ".join(inspect.cleandoc(text).split("\n\n")[0].split())


def _argument_row(argument: TyperArgument, ctx: Any) -> tuple[str, str]:
    record = argument.get_help_record(ctx)
    return (argument.metavar or argument.name or "").upper(), _EXTRA.sub("", record[1]).strip() if record else ""


def _option_row(option: Any, ctx: Any) -> tuple[str, str]:
    """Names the value and lists the choices of typer's `-o, --output <table|json>`, `Form of … [default: table]`."""
    names, text = option.get_help_record(ctx)
    kind = "" if option.is_flag else option.display_type(ctx).strip("<>")
    if "|" in kind:
        extra = _EXTRA.search(text)
        choices = "; ".join([", ".join(kind.split("|")), *([extra["extra"]] if extra else [])])
        text = f"{_EXTRA.sub('', text)} [{choices}]"
    value = "N" if re.search(r"\b(int|float)\b", kind) else option.name.upper()
    return names.replace(f"<{kind}>", value), re.sub(r"\bx>=([\d.]+)", r"\1 or more", text)


def _styled(style: str, text: str) -> str:
    return text if "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb" else f"{style}{text}{_PLAIN}"
