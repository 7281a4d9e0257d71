"""Prints the answer of a command in the requested format: data on stdout, and only data.

    table    for people; aligned columns
    json     one document, indented
    yaml     one document
    ndjson   one compact JSON document for each line

Talk goes to stderr (`say`), and so do progress bars, which only a terminal gets.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import zip_longest
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer


class Output(StrEnum):
    """The output format of a command."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    NDJSON = "ndjson"


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", metavar="FORM", help="Form of the answer on stdout.", show_default=True)
]

Row = Mapping[str, Any]
Styles = Mapping[str, str]

# Two columns.
_BETWEEN: Final = "  "
_COUNTS: Final = ("records", "bytes", "objects", "segments", "sessions", "batches_checked", "per_second")


def show_rows(
    rows: Sequence[Row],
    output: Output,
    *,
    columns: Sequence[str] = (),
    narrow: Sequence[str] = (),
    styles: Styles = MappingProxyType({}),
) -> None:
    """Prints several things of one kind. `columns` selects the table's columns; none means all of the first row.

    `narrow`: the columns for a terminal that is too narrow for all, with a note on stderr.
    """
    if output is not Output.TABLE:
        _write_document(list(rows), output)
        return
    names = columns or (list(rows[0]) if rows else [])
    header, cells = _as_cells(rows, names)
    if narrow and sys.stdout.isatty() and (needed := _width(header, cells)) > shutil.get_terminal_size().columns:
        write_table(*_as_cells(rows, narrow), styles=styles)
        say(f"-o json, or a terminal of {needed} columns, tells more of each")
    else:
        write_table(header, cells, styles=styles)


def _as_cells(rows: Sequence[Row], names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    header = [name.replace("_", " ").upper() for name in names]
    return header, [[cell(row.get(name), name) for name in names] for row in rows]


def _width(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Returns the width of a table whose cells are not folded."""
    return sum(max(map(len, column)) + len(_BETWEEN) for column in zip(header, *rows, strict=True)) - len(_BETWEEN)


def show_one(row: Row, output: Output) -> None:
    """Prints one thing with its properties."""
    if output is Output.TABLE:
        write_table([], [[name.replace("_", " "), cell(value, name)] for name, value in row.items()])
    else:
        _write_document(row, output)


def show_done(row: Row, output: Output, talk: str) -> None:
    """Prints a change: one sentence for people, or `row` for programs."""
    say(talk)
    if output is not Output.TABLE:
        show_one(row, output)


def write_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, styles: Styles = MappingProxyType({})) -> None:
    """Prints aligned columns: wrapped to the window on a terminal, never cut or wrapped elsewhere. A cell may have several lines.

    `styles`: by a cell's whole text, how a terminal shows it.
    """
    columns = list(zip(*rows, strict=True)) or [() for _ in header]
    right = [bool(header) and _are_numbers(cells) for cells in columns]
    if sys.stdout.isatty():
        _write_for_terminal(header, rows, right, styles)
        return
    lines = [line for row in ([header, *rows] if header else rows) for line in zip_longest(*map(_lines, row), fillvalue="")]
    widths = [max((len(line[number]) for line in lines), default=0) for number in range(len(columns))]
    for line in lines:
        texts = [
            text.rjust(width) if numeric else text.ljust(width) for text, width, numeric in zip(line, widths, right, strict=True)
        ]
        sys.stdout.write(_BETWEEN.join(texts).rstrip() + "\n")


def _lines(text: str) -> list[str]:
    return text.split("\n")


def _write_for_terminal(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], styles: Styles) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=bool(header), pad_edge=False, padding=(0, len(_BETWEEN), 0, 0), header_style="bold")
    for number, numeric in enumerate(right):
        table.add_column(header[number] if header else "", justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(text, style=styles.get(text, "")) for text in row))
    Console(file=sys.stdout, highlight=False).print(table)


def cell(value: object, name: str = "") -> str:
    """Formats a value for a table. Counts, by their `name`, get thousands separators; offsets and ids stay copyable."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:,.2f}"
        case int() if name.endswith(_COUNTS):
            return f"{value:,}"
        case Mapping():
            return " ".join(f"{key}={cell(inner)}" for key, inner in value.items()) or "-"
        case list() | tuple():
            return ", ".join(cell(inner) for inner in value) or "-"
    return str(value) or "-"


def say(text: str = "") -> None:
    """Prints a message for people on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _write_document(document: Any, output: Output) -> None:
    import msgspec

    if output is Output.YAML:
        import yaml

        plain = msgspec.json.decode(msgspec.json.encode(document))
        sys.stdout.write(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
    elif output is Output.JSON:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")
    else:
        lines = document if isinstance(document, list) else [document]
        sys.stdout.writelines(msgspec.json.encode(line).decode() + "\n" for line in lines)
    sys.stdout.flush()


def _are_numbers(cells: Sequence[str]) -> bool:
    """Returns whether all cells are numbers or "-"."""
    filled = [text for text in cells if text != "-"]
    return bool(filled) and all(map(_is_number, filled))


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "", 1).removeprefix("-").isdigit()
