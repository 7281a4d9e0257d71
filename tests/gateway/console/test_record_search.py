"""The search runs against a log in memory that answers as the API does."""

from __future__ import annotations

import asyncio
import base64
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.console import record_search
from gateway.console.api_client import ApiRefused
from gateway.console.record_search import Found, RecordSearch, Start
from gateway.console.record_view import RecordFilter

PAGE = 7


class FakeApi:
    """Serves partitions of records, at most PAGE a read. A record is its time and its value."""

    def __init__(self, partitions: list[list[tuple[int, bytes]]], *, log_start: int = 0) -> None:
        self._partitions = partitions
        self._log_start = log_start

    async def get(self, *path: str, max_records: int, max_bytes: int, key_format: str, value_format: str, **where: Any) -> Any:
        records = self._partitions[int(path[4])]
        end = len(records)
        start = self._log_start
        if "tail" in where:
            start = max(start, end - where["tail"])
        elif "timestamp" in where:
            start = next((at for at, (time, _) in enumerate(records) if time >= where["timestamp"] and at >= start), end)
        elif where["offset"] != "earliest":
            start = int(where["offset"])
            if start < self._log_start or start > end:
                raise ApiRefused(416, {"code": "OFFSET_OUT_OF_RANGE"})
        shown = range(start, min(end, start + min(PAGE, max_records)))
        return {
            "records": [
                {
                    "partition": int(path[4]),
                    "offset": at,
                    "timestamp": records[at][0],
                    "key": None,
                    "value": base64.b64encode(records[at][1]).decode(),
                    "headers": [],
                }
                for at in shown
            ],
            "next_offset": shown.stop if shown else start,
            "high_watermark": end,
            "log_start_offset": self._log_start,
        }


def search(api: FakeApi, wanted: str = "") -> RecordSearch:
    return RecordSearch(api, "orders", RecordFilter(value=wanted), clock=lambda: 0.0)  # type: ignore[arg-type]  # a double


def positions(found: Found) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in found.records]


logs = st.lists(st.lists(st.tuples(st.integers(0, 30), st.sampled_from([b"a", b"b"])), max_size=40), min_size=1, max_size=3)


@given(logs, st.integers(1, 12), st.sampled_from(["", "a"]))
def test_pages_of_the_newest_records_show_each_match_once(log: list[list[tuple[int, bytes]]], count: int, wanted: str) -> None:
    async def scenario() -> None:
        api, shown = FakeApi(log), list[tuple[int, int]]()
        below: dict[int, int] | None = None
        while True:
            found = await search(api, wanted).newest(range(len(log)), count=count, below=below)
            shown += positions(found)
            if not found.go_on:
                break
            below = found.go_on
        matches = [(p, at) for p, records in enumerate(log) for at, (_, value) in enumerate(records) if wanted.encode() in value]
        assert sorted(shown) == matches

    asyncio.run(scenario())


@given(logs, st.integers(1, 12), st.sampled_from(["", "a"]), st.integers(0, 30))
def test_pages_from_a_time_on_show_each_match_once(
    log: list[list[tuple[int, bytes]]], count: int, wanted: str, moment: int
) -> None:
    async def scenario() -> None:
        api, shown = FakeApi(log), list[tuple[int, int]]()
        go_on: dict[int, int] | None = None
        while True:
            start = Start(newest=False, timestamp_ms=moment)
            found = await search(api, wanted).onward(range(len(log)), start, count=count, from_=go_on)
            shown += positions(found)
            if not found.go_on:
                break
            go_on = found.go_on
        matches = []
        for partition, records in enumerate(log):
            first = next((at for at, (time, _) in enumerate(records) if time >= moment), len(records))
            matches += [(partition, at) for at in range(first, len(records)) if wanted.encode() in records[at][1]]
        assert sorted(shown) == matches

    asyncio.run(scenario())


def test_the_newest_page_is_ordered_by_time_over_all_partitions() -> None:
    api = FakeApi([[(1, b"a"), (5, b"b")], [(3, b"c")]])
    found = asyncio.run(search(api).newest([0, 1], count=2))
    assert positions(found) == [(0, 1), (1, 0)]


def test_a_search_begins_at_the_log_start_where_older_records_were_deleted() -> None:
    api = FakeApi([[(at, b"x") for at in range(20)]], log_start=15)
    found = asyncio.run(search(api).newest([0], count=10))
    assert positions(found) == [(0, at) for at in range(19, 14, -1)]
    assert found.is_whole


def test_a_search_that_takes_too_long_says_where_to_go_on() -> None:
    times = iter(range(1_000_000))
    api = FakeApi([[(at, b"x") for at in range(10_000)]])
    slow = RecordSearch(api, "orders", RecordFilter(value="never"), clock=lambda: float(next(times)))  # type: ignore[arg-type]  # a double
    found = asyncio.run(slow.onward([0], Start(newest=False), count=5))
    assert not found.records
    assert 0 < found.go_on[0] < 10_000


def test_a_search_that_has_read_much_leaves_other_partitions_out_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_search, "SEARCH_BYTES", 100)
    monkeypatch.setattr(record_search, "PARTITIONS_AT_ONCE", 1)
    api = FakeApi([[(1, b"x" * 90)] * 3, [(2, b"y")]])
    found = asyncio.run(search(api).newest([0, 1], count=2))
    assert list(found.refused) == [1]
    assert not found.is_whole


def test_the_newest_records_are_shown_however_large_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_search, "SEARCH_BYTES", 3 * PAGE * 100)
    api = FakeApi([[(at, b"x" * 75) for at in range(200)]])
    found = asyncio.run(search(api).newest([0], count=100))
    assert positions(found)[0] == (0, 199)
    assert positions(found) == [(0, at) for at in range(199, 199 - len(found.records), -1)]
    assert found.go_on == {0: 200 - len(found.records)}
    assert len(found.records) < 100, "the bound of bytes holds"


def test_a_search_with_many_matches_is_merged_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    merged_in: list[int] = []
    merged = record_search._merged

    def noted(*given: Any, **named: Any) -> Any:
        merged_in.append(threading.get_ident())
        return merged(*given, **named)

    monkeypatch.setattr(record_search, "_merged", noted)
    monkeypatch.setattr(record_search, "MERGED_AT_ONCE", 10)
    api = FakeApi([[(at, b"x") for at in range(6)] for _ in range(3)])
    for partitions in ([0], [0, 1, 2]):
        asyncio.run(search(api).newest(partitions, count=6))
    here = threading.get_ident()
    assert (merged_in[0] == here, merged_in[1] == here) == (True, False)


def test_reads_of_many_partitions_begin_in_turns_of_their_own() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        turn, began = 0, list[int]()

        def count() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(count)

        class Noting(FakeApi):
            async def get(self, *path: str, **asked: Any) -> Any:
                began.append(turn)
                return await super().get(*path, **asked)

        count()
        await search(Noting([[(0, b"x")] for _ in range(20)])).newest(list(range(20)), count=5)
        assert len(set(began)) == len(began) == 20

    asyncio.run(scenario())
