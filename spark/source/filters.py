"""Derives from the filters that Spark pushes down which parts need not be read. Pure.

Spark still applies each filter itself: the result here only saves reads. Filters are joined by AND.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from spark.source.scan_plan import ALL_ROWS, RowFilter


def rows_wanted(filters: Iterable[Filter]) -> RowFilter:
    rows = ALL_ROWS
    for one in filters:
        rows = _narrowed(rows, one)
    return rows


def _narrowed(rows: RowFilter, wanted: Filter) -> RowFilter:
    match wanted:
        case In(attribute=("partition",), value=values):
            return _in_partitions(rows, frozenset(value for value in values if isinstance(value, int)))
        case EqualTo(attribute=(column,), value=value) | EqualNullSafe(attribute=(column,), value=value):
            return _within(rows, column, value, value)
        case GreaterThan(attribute=(column,), value=value):
            return _within(rows, column, value + 1 if isinstance(value, int) else value, None)
        case GreaterThanOrEqual(attribute=(column,), value=value):
            return _within(rows, column, value, None)
        case LessThan(attribute=(column,), value=value):
            return _within(rows, column, None, value - 1 if isinstance(value, int) else value)
        case LessThanOrEqual(attribute=(column,), value=value):
            return _within(rows, column, None, value)
        case _:
            return rows


def _within(rows: RowFilter, column: str, low: object, high: object) -> RowFilter:
    """Returns the rows with `low` and more, and `high` and less, in this column; None for no bound."""
    if column == "partition" and isinstance(low, int) and low == high:
        return _in_partitions(rows, frozenset([low]))
    if column == "offset":
        rows = rows._replace(offset_min=max(rows.offset_min, low)) if isinstance(low, int) else rows
        return rows._replace(offset_max=min(rows.offset_max, high)) if isinstance(high, int) else rows
    if column == "timestamp" and isinstance(low, datetime) and low.tzinfo is not None:
        return rows._replace(timestamp_min_ms=max(rows.timestamp_min_ms, _ms_before(low)))
    return rows


def _in_partitions(rows: RowFilter, wanted: frozenset[int]) -> RowFilter:
    return rows._replace(partitions=wanted if rows.partitions is None else rows.partitions & wanted)


def _ms_before(time: datetime) -> int:
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
