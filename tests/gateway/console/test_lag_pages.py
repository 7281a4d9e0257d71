"""The lag of the last hour on the pages of groups: what is drawn, what a refresh reads, and what is shown without samples."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.console.pages.lag import BREAK, FIGURES_MAX, GAP_INTERVALS, known_topics, lag_chart, lag_charts, present_lag
from gateway.console.rendering import sparkline
from gateway.groups.admin.local_admin import LocalGroupAdmin
from gateway.proto import groups_pb2
from metadata.errors import Corrupt, Unavailable
from tests.gateway.groups.admin.test_lag_history import INTERVAL_MS, commit, pass_an_interval
from tests.gateway.http.groups.test_routes import produce
from tests.kit.gateway.console_reader import Reader
from tests.kit.gateway.http_client import Client, serve
from tests.kit.gateway.small_broker import SmallBroker


def history(**changed: Any) -> dict[str, Any]:
    base = {
        "interval_ms": INTERVAL_MS,
        "age_ms": 0,
        "at_ms": [0, INTERVAL_MS, 2 * INTERVAL_MS],
        "lag_records": [5, 4, 0],
        "lag_seconds": [2.5, None, 0.0],
        "topics": [{"topic": "orders", "lag_records": [None, 4, 0], "lag_seconds": [None, None, 0.0]}],
    }
    return base | changed


def test_a_line_is_broken_where_no_sample_was_taken_and_goes_over_one_that_is_missing() -> None:
    gap = GAP_INTERVALS * INTERVAL_MS
    chart = lag_chart("Records", [0, gap, 2 * gap + 1, 2 * gap + 2], [1, 2, 3, None], INTERVAL_MS)
    assert chart is not None
    assert list(zip(chart.drawn_at_s, chart.drawn, strict=True)) == [
        (0, 1),
        (gap / 1000, 2),
        ((gap + 1) / 1000, BREAK),
        ((2 * gap + 1) / 1000, 3),
    ]
    assert (chart.least, chart.most) == (1, 3)


def test_a_chart_needs_two_samples_that_are_known() -> None:
    assert set(lag_charts(history())) == {"records", "seconds"}
    assert set(lag_charts(history(lag_seconds=[None, None, 1.0]))) == {"records"}
    assert lag_charts(history(at_ms=[0], lag_records=[1], lag_seconds=[0.0])) == {}
    assert lag_charts(history(at_ms=[], lag_records=[], lag_seconds=[])) == {}


def test_some_figures_of_a_long_chart_are_listed_and_the_newest_is_among_them() -> None:
    for count in (2, FIGURES_MAX, FIGURES_MAX + 1, 240):
        chart = lag_chart("Records", range(count), list(range(count)), INTERVAL_MS)
        assert chart is not None
        some = list(chart.some)
        assert len(some) <= FIGURES_MAX
        assert [at for at, _ in some] == sorted(at for at, _ in some)
        assert some[-1][0] == count - 1


def test_the_newest_sample_is_the_present_lag_unless_it_is_old() -> None:
    assert present_lag(history()) == {"lag_records": 0, "lag_seconds": 0.0}
    assert present_lag(history(age_ms=GAP_INTERVALS * INTERVAL_MS + 1)) is None
    assert present_lag(history(age_ms=None)) is None
    assert present_lag(None) is None


def test_a_topic_is_drawn_over_the_samples_in_which_the_group_read_it() -> None:
    [topic] = known_topics(history())
    assert (topic.at_ms, topic.records, topic.seconds_most) == ([INTERVAL_MS, 2 * INTERVAL_MS], [4, 0], 0.0)


def test_points_of_a_sparkline_lie_where_their_times_are() -> None:
    assert sparkline([0, 4, 2], times=[10, 11, 20], width=100, height=24) == "0.0,23.0 10.0,1.0 100.0,12.0"
    assert sparkline([1, 2], times=[5, 5]) != ""
    assert sparkline([1], times=[5]) == ""


@pytest.mark.slow
def test_the_pages_show_the_samples_and_a_refresh_reads_them_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[bool] = []
    describe = LocalGroupAdmin.describe

    async def noted(self: LocalGroupAdmin, request: groups_pb2.DescribeGroupRequest) -> groups_pb2.GroupDescription:
        described.append(not request.without_lags)
        return await describe(self, request)

    monkeypatch.setattr(LocalGroupAdmin, "describe", noted)

    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 9)
        await commit(client, 0)
        reader = Reader(client)
        _, html = await reader.get("/console/groups")
        assert '<td class="number">3</td>' in html, "as of now, without a sample"
        assert described.count(True) == 1
        _, page = await reader.get("/console/groups/billing")
        assert "The lag is followed from now on" in page
        for offset in (1, 3):
            await commit(client, offset)
            await pass_an_interval(broker)
        described.clear()
        for page in ("/console/groups", "/console/groups/billing"):
            fragment = await client.get(page, hx_request="true")
            assert fragment.status == 200
            assert b"<html" not in fragment.body
            assert b"polyline" in fragment.body or b"data-values" in fragment.body
        _, html = await reader.get("/console/groups")
        assert '<td class="number">0</td>' in html
        assert not any(described), "no leader is asked for what the samples say"
        _, html = await reader.get("/console/groups/billing")
        assert 'data-values="2 0"' in html
        assert 'data-unit="records"' in html
        assert re.search(r'<th scope="row"><a href="/console/topics/orders/groups">orders</a></th>', html)

    serve(tmp_path, scenario)


@pytest.mark.slow
def test_the_list_does_not_wait_twice_for_a_coordinator_that_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[str] = []
    describe = LocalGroupAdmin.describe

    async def noted(self: LocalGroupAdmin, request: groups_pb2.DescribeGroupRequest) -> groups_pb2.GroupDescription:
        described.append(request.group)
        return await describe(self, request)

    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 9)
        await commit(client, 1)

        async def fails(_: str) -> None:
            await asyncio.sleep(0)
            raise Unavailable("not now")

        monkeypatch.setattr(broker.lag_history, "read", fails)
        monkeypatch.setattr(LocalGroupAdmin, "describe", noted)
        reader = Reader(client)
        status, html = await reader.get("/console/groups")
        assert status == 200
        assert re.search(r'<td class="number muted" colspan="2">unknown</td>', html)
        assert described == []
        status, html = await reader.get("/console/groups/billing")
        assert status == 200
        assert "The broker does not know it at the moment." in html

    serve(tmp_path, scenario)


@pytest.mark.slow
def test_a_page_is_shown_where_the_history_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 9)
        await commit(client, 1)

        async def fails(_: str) -> None:
            await asyncio.sleep(0)
            raise Corrupt("damaged")

        monkeypatch.setattr(broker.lag_history, "read", fails)
        reader = Reader(client)
        status, html = await reader.get("/console/groups")
        assert status == 200
        assert '<td class="number">2</td>' in html
        status, html = await reader.get("/console/groups/billing")
        assert status == 200
        assert "The broker does not know it at the moment." in html
        assert (await client.get("/console/groups", hx_request="true")).status == 200
        assert (await reader.get("/console/groups/none"))[0] == 404

    serve(tmp_path, scenario)
