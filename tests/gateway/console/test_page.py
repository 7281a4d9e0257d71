from __future__ import annotations

import pytest

from gateway.console.page import Answer, Redirect, Routes, View, link
from gateway.console.pages.groups import seek_body
from gateway.console.pages.records import asked_of
from gateway.console.record_search import Start
from gateway.console.rendering import dollars, shown_bytes, shown_duration, sparkline, utc


async def page(view: View) -> Answer:
    return Redirect("/")


def test_an_address_quotes_every_name() -> None:
    assert link("groups", "a/b c", page="x&y", none=None) == "/console/groups/a%2Fb%20c?page=x%26y"


def test_a_route_names_the_parts_in_braces() -> None:
    routes = Routes()
    routes.add("GET", "topics/{topic}/records", page)
    found = routes.find("GET", ("topics", "orders", "records"))
    assert found is not None
    assert found[1] == {"topic": "orders"}
    assert routes.find("POST", ("topics", "orders", "records")) is None
    assert routes.find("GET", ("topics", "orders")) is None


@pytest.mark.parametrize(
    ("query", "start"),
    [
        ({}, Start()),
        ({"order": "earliest"}, Start(newest=False)),
        ({"order": "offset", "partition": "3", "offset": "17"}, Start(newest=False, offset=17)),
        ({"order": "time", "time": "2026-01-31T12:00"}, Start(newest=False, timestamp_ms=1_769_860_800_000)),
        ({"order": "time", "time": "1769860800000"}, Start(newest=False, timestamp_ms=1_769_860_800_000)),
    ],
)
def test_the_form_of_records_says_where_to_begin(query: dict[str, str], start: Start) -> None:
    asked = asked_of(query)
    assert (asked.start, asked.refused) == (start, "")


@pytest.mark.parametrize(
    "query",
    [{"order": "offset", "offset": "17"}, {"order": "offset", "partition": "1", "offset": "x"}, {"order": "time", "time": "noon"}],
)
def test_a_form_that_makes_no_sense_is_refused_with_a_sentence(query: dict[str, str]) -> None:
    assert asked_of(query).refused.endswith(".")


@pytest.mark.parametrize(
    ("form", "body"),
    [
        ({"to": "earliest"}, {"to": "earliest"}),
        ({"to": "offset", "point": "17", "topic": "orders"}, {"to": {"offset": 17}, "topics": ["orders"]}),
        ({"to": "shift", "point": "-5"}, {"to": {"shift": -5}}),
        ({"to": "time", "point": "2026-01-31T12:00"}, {"to": {"timestamp": "2026-01-31T12:00:00Z"}}),
        (
            {"to": "latest", "topic": "orders", "partition": "2"},
            {"to": "latest", "topics": [{"topic": "orders", "partitions": [2]}]},
        ),
    ],
)
def test_the_form_of_a_seek_becomes_the_body_of_the_api(form: dict[str, str], body: dict[str, object]) -> None:
    assert seek_body(form) == body


@pytest.mark.parametrize(
    "form", [{"to": "offset", "point": "x"}, {"to": "time"}, {}, {"to": "latest", "topic": "t", "partition": "x"}]
)
def test_a_seek_that_makes_no_sense_is_refused_with_a_sentence(form: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"\.$"):
        seek_body(form)


def test_figures_have_three_digits_and_a_unit() -> None:
    assert [shown_bytes(size) for size in (0, 999, 1024, 1536, 10 * 2**20, 5 * 2**40)] == [
        "0 B",
        "999 B",
        "1.00 KiB",
        "1.50 KiB",
        "10.0 MiB",
        "5.00 TiB",
    ]
    assert [shown_duration(seconds) for seconds in (0, 0.25, 3, 90, 7_200, 200_000)] == [
        "0 s",
        "250 ms",
        "3.00 s",
        "1.50 min",
        "2.00 h",
        "2.31 d",
    ]
    assert [dollars(amount) for amount in (0, 1e-9, 0.0042, 1234.5)] == ["$0.00", "< $0.0001", "$0.0042", "$1,234.50"]
    assert utc(1_769_860_800_123) == "2026-01-31 12:00:00.123Z"
    assert utc(10**18) == "1000000000000000000 ms"


def test_a_sparkline_stays_in_its_chart() -> None:
    points = [tuple(map(float, point.split(","))) for point in sparkline([0, 5, 10], width=100, height=20).split()]
    assert points == [(0.0, 19.0), (50.0, 10.0), (100.0, 1.0)]
    assert sparkline([1]) == ""
