"""The help pages: one layout for every command, that fits 80 columns. Pure but for asking how wide the terminal is.

    Usage: tidelog produce [OPTIONS] TOPIC

    Writes records from a file or standard input.

      echo hello | tidelog produce greetings         paragraphs that begin with \\b are shown as they stand

    Options
      -f, --file FILE   Read this file instead of standard input.
          --acks ACKS   Wait for the bucket, … [all, leader, none; default: all]

A value is named by its metavar, else by the option's own name; a flag has none. typer takes the colours away where no terminal
shows them.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from tidelog.cli.app.credential_options import credential_options
from tidelog.cli.app.errors import BAD_USAGE

WIDTH_MAX: Final = 100
NAMES_WIDTH_MAX: Final = 24
"""A longer option stands on a line of its own."""
EXIT_CODES: Final = (
    "Exit codes: 0 done, 1 failed, 2 bad usage, 3 unhealthy, 130 interrupted.\n"
    "TIDELOG_DEBUG=1 shows tracebacks. NO_COLOR=1 takes the colours away."
)

_BOLD, _CYAN, _DIM, _PLAIN = "\x1b[1m", "\x1b[36m", "\x1b[2m", "\x1b[0m"
_EXTRA = re.compile(r" *\[(?P<extra>[^\[\]]*)\]$")
_NUMBERS = {"int": "N", "int range": "N", "list[int]": "N", "float": "NUMBER", "float range": "NUMBER"}


class CommandPage(TyperCommand):
    """A command with such a page: `@app.command(cls=CommandPage)`. One that has --url has the options of credentials as well."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if any("--url" in parameter.opts for parameter in self.params):
            last = 1 + next(at for at, parameter in enumerate(self.params) if "--url" in parameter.opts)
            self.params[last:last] = credential_options()

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return _plain_pieces(super().collect_usage_pieces(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_page(self, ctx, commands={}))


class GroupPage(TyperGroup):
    """A group of commands with such a page: `Typer(cls=GroupPage)`."""

    sections: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Names of its commands under headings; what is under none stands under "Commands"."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Alone, it shows its page: that is help, and a command line that asks for nothing."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(BAD_USAGE)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        shown = {name: found for name in self.list_commands(ctx) if (found := self.get_command(ctx, name)) and not found.hidden}
        placed = {name for names in self.sections.values() for name in names}
        rest = [name for name in shown if name not in placed]
        sections = {**self.sections, "Commands": rest} if rest else self.sections
        rows = {
            heading: [(name, _first_paragraph(shown[name].help or "")) for name in names if name in shown]
            for heading, names in sections.items()
        }
        formatter.write(_page(self, ctx, commands=rows))


def _page(command: Any, ctx: Any, *, commands: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    width = min(shutil.get_terminal_size().columns, WIDTH_MAX)
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    parts = [f"{_styled(_BOLD, 'Usage:')} {usage}", _described(command.help or "", width)]
    arguments = [_argument_row(parameter, ctx) for parameter in command.get_params(ctx) if isinstance(parameter, TyperArgument)]
    options = [_option_row(parameter, ctx) for parameter in command.get_params(ctx) if not isinstance(parameter, TyperArgument)]
    names_width = max(len(name) for name in [row[0] for rows in commands.values() for row in rows] or [""])
    for heading, rows in commands.items():
        parts.append(_section(heading, rows, width, names_width))
    for heading, rows in (("Arguments", arguments), ("Options", options)):
        if rows:
            parts.append(_section(heading, rows, width, min(NAMES_WIDTH_MAX, max(len(name) for name, _ in rows))))
    return "\n\n".join([part for part in parts if part] + [_styled(_DIM, EXIT_CODES)])


def _plain_pieces(pieces: Iterable[str]) -> list[str]:
    """typer writes {TOPIC} for what must be given."""
    return [re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), piece) for piece in pieces]


def _first_paragraph(text: str) -> str:
    return " ".join(inspect.cleandoc(text).split("\n\n")[0].split())


def _described(text: str, width: int) -> str:
    paragraphs = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            lines = paragraph.removeprefix("\b").strip("\n").split("\n")
            paragraphs.append("\n".join(_styled(_CYAN, f"  {line.strip()}") for line in lines))
        else:
            paragraphs.append(textwrap.fill(" ".join(paragraph.split()), width, break_on_hyphens=False))
    return "\n\n".join(paragraphs)


def _section(heading: str, rows: Iterable[tuple[str, str]], width: int, names_width: int) -> str:
    lines = [_styled(_BOLD, heading)]
    indent = " " * (names_width + 4)
    for name, text in rows:
        wrapped = textwrap.wrap(text, width - len(indent), break_on_hyphens=False, break_long_words=False) or [""]
        if len(name) > names_width:
            lines.append(f"  {_styled(_CYAN, name)}")
        else:
            lines.append(f"  {_styled(_CYAN, name)}{' ' * (names_width - len(name) + 2)}{wrapped.pop(0)}".rstrip())
        lines += [indent + line for line in wrapped]
    return "\n".join(lines)


def _argument_row(argument: TyperArgument, ctx: Any) -> tuple[str, str]:
    record = argument.get_help_record(ctx)
    return (argument.metavar or argument.name or "").upper(), _EXTRA.sub("", record[1]).strip() if record else ""


def _option_row(option: Any, ctx: Any) -> tuple[str, str]:
    """From typer's `-o, --output <table|json>` and `Form of … [default: table]`."""
    names, text = option.get_help_record(ctx)
    names = names if names[1] != "-" else f"    {names}"
    kind = "" if option.is_flag else option.display_type(ctx).strip("<>")
    own_name = option.name.upper()
    if "|" in kind:
        extra = _EXTRA.search(text)
        choices = "; ".join([", ".join(kind.split("|")), *([extra["extra"]] if extra else [])])
        text = f"{_EXTRA.sub('', text)} [{choices}]"
    text = re.sub(r"\bx>=([\d.]+)", r"\1 or more", text)
    return names.replace(f"<{kind}>", _NUMBERS.get(kind, own_name)), " ".join(text.split())


def _styled(style: str, text: str) -> str:
    return text if not text or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb" else f"{style}{text}{_PLAIN}"
