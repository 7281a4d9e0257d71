"""The console over the real routes of a small broker."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from yarl import URL

from gateway.console.api_client import ApiClient, ApiRefused
from gateway.console.console import CONTENT_SECURITY_POLICY
from gateway.console.pages.tail import RECORDS_PER_EVENT
from gateway.console.record_view import shown_record
from gateway.settings import GatewaySettings
from tests.kit.gateway.console_reader import FORM, Reader
from tests.kit.gateway.http_client import Client, serve
from tests.kit.gateway.small_broker import SmallBroker

pytestmark = pytest.mark.slow

HOSTILE = "<script>alert(1)</script>"


def test_topics_are_made_shown_and_deleted_once_their_name_is_typed(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        reader = Reader(client)
        assert await reader.post("/console/topics", "/console/topics", "name=sales&partition_count=2") == (
            303,
            "/console/topics/sales",
        )
        assert "sales" in (await reader.get("/console/topics"))[1]
        page = "/console/topics/sales/partitions"
        assert (await reader.post(page, "/console/topics/sales/delete", "confirmation=other"))[0] == 409
        assert (await reader.post(page, "/console/topics/sales/delete", "confirmation=sales"))[0] == 303
        assert "sales" not in str((await client.get("/v1/topics")).json)

    serve(tmp_path, scenario)


def test_no_page_runs_what_a_record_holds(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.ask("POST", "/v1/topics", json={"name": "sales", "partition_count": 1})
        record = {"key": HOSTILE, "value": HOSTILE, "headers": {HOSTILE: HOSTILE}}
        await client.produce("/v1/topics/sales/records", [record])
        reader = Reader(client)
        for path in ("records", "records/0/0", f"records?value={HOSTILE}", f"tail?key={HOSTILE}"):
            status, html = await reader.get(f"/console/topics/sales/{path.replace('<', '%3C').replace('>', '%3E')}")
            assert status == 200
            assert HOSTILE not in html
            assert "&lt;script&gt;" in html

    serve(tmp_path, scenario)


def test_every_answer_carries_the_content_security_policy(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        for path in ("/console", "/console/topics", "/console/none", "/console/static/console.css", "/console/static/none"):
            answer = await client.get(path)
            assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY.decode()

    serve(tmp_path, scenario)


def test_a_form_without_the_token_of_its_session_changes_nothing(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        answer = await client.ask("POST", "/console/topics", data=b"name=sales&partition_count=1", headers=FORM)
        assert answer.status == 403
        assert "sales" not in str((await client.get("/v1/topics")).json)

    serve(tmp_path, scenario)


def test_a_produced_record_is_shown_with_where_it_lies(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.ask("POST", "/v1/topics", json={"name": "sales", "partition_count": 2})
        reader = Reader(client)
        page = "/console/topics/sales/produce"
        form = "key=c-7&value=%7B%22id%22%3A7%7D&headers=trace%3A+ab&partition=1"
        assert await reader.post(page, page, form) == (303, "/console/topics/sales/records/1/0")
        _, html = await reader.get("/console/topics/sales/records/1/0")
        assert "wal/" in html
        assert "trace" in html
        assert "c-7" in html

    serve(tmp_path, scenario)


def test_a_download_has_the_records_that_match(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.ask("POST", "/v1/topics", json={"name": "sales", "partition_count": 1})
        await client.produce("/v1/topics/sales/records", [{"key": f"k{i}", "value": "=1+1" if i == 3 else "x"} for i in range(20)])
        lines = (await client.get("/console/topics/sales/download?key=k1")).body.splitlines()
        assert len(lines) == 11
        answer = await client.get("/console/topics/sales/download?as=csv&key=k3")
        partition, offset, _, key, value, _ = answer.body.decode().splitlines()[1].split(",")
        assert (partition, offset, key, value) == ("0", "3", "k3", "'=1+1")

    serve(tmp_path, scenario)


def test_settings_are_changed_and_refused_with_the_reason(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.ask("POST", "/v1/topics", json={"name": "sales", "partition_count": 1})
        reader = Reader(client)
        page = "/console/topics/sales/settings"
        assert (await reader.post(page, page, "name=retention.ms&value=5000"))[0] == 303
        status, html = await reader.post(page, page, "name=retention.ms&value=soon")
        assert status == 400
        assert "retention.ms" in html
        assert (await reader.post(page, "/console/topics/sales/grow", "partition_count=3"))[0] == 303
        topic = (await client.get("/v1/topics/sales")).json
        assert (topic["settings"], topic["partition_count"]) == ({"retention.ms": "5000"}, 3)

    serve(tmp_path, scenario)


def test_offsets_are_moved_after_a_table_of_what_would_change(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.ask("POST", "/v1/topics", json={"name": "sales", "partition_count": 1})
        await client.produce("/v1/topics/sales/records", [{"value": i} for i in range(5)])
        commit = {"offsets": [{"topic": "sales", "partition": 0, "offset": 4}]}
        assert (await client.ask("POST", "/v1/groups/billing/offsets", json=commit)).status == 200
        reader = Reader(client)
        page, seek = "/console/groups/billing", "/console/groups/billing/seek"
        status, html = await reader.post(page, seek, "to=earliest&point=&topic=&partition=")
        assert status == 200
        assert "What would change" in html
        assert (await client.get("/v1/groups/billing/offsets")).json["offsets"][0]["offset"] == 4
        status, html = await reader.post(page, seek, "to=earliest&point=&topic=&partition=&confirmed=true")
        assert "The offsets were moved." in html
        assert (await client.get("/v1/groups/billing/offsets")).json["offsets"][0]["offset"] == 0

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    "path", ["/console/none", "/console/topics/none/records", "/console/groups/none", "/console/topics/x/records/0/5"]
)
def test_a_page_of_something_that_does_not_exist_says_so(path: str, tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        answer = await client.get(path)
        assert answer.status == 404
        assert b"<h1>" in answer.body

    serve(tmp_path, scenario)


def test_a_console_without_values_shows_sizes_and_finds_nothing_by_value(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.ask("POST", "/v1/topics", json={"name": "sales", "partition_count": 1})
        await client.produce(
            "/v1/topics/sales/records", [{"key": "c-7", "value": "secret", "headers": {"h": "secret"}}, {"value": "x"}]
        )
        reader = Reader(client)
        for path in ("records", "records/0/0", "records?value=secret"):
            status, html = await reader.get(f"/console/topics/sales/{path}")
            assert status == 200
            assert "secret" not in html.replace("?value=secret", "").replace("value=secret", "")
            assert "not shown" in html
        assert "2 shown" in (await reader.get("/console/topics/sales/records?value=secret"))[1]
        for path in ("download", "records/0/0/value"):
            assert (await client.get(f"/console/topics/sales/{path}")).status == 403

    serve(tmp_path, scenario, settings=GatewaySettings(console_values=False))


def test_the_tail_shows_the_newest_records_of_a_topic_that_is_faster_than_the_page(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.ask("POST", "/v1/topics", json={"name": "sales", "partition_count": 1})
        async with client.session.get("/console/topics/sales/tail/events") as answer:
            events = answer.content
            assert (await events.readline()) == b": open\n"
            seen = left_out = produced = 0
            while produced < 4 or left_out <= 1_000:  # on a busy machine an event holds fewer records
                if produced < 4:
                    await client.produce("/v1/topics/sales/records", [{"value": "x"}] * 700)
                    produced += 1
                event = b""
                while not event.startswith(b"data:"):
                    event = await events.readline()
                shown = msgspec.json.decode(event[5:])
                assert shown["html"].count("<tr>") <= RECORDS_PER_EVENT
                seen, left_out = seen + shown["seen"], left_out + shown["left_out"]
            assert 1_000 < left_out < seen <= 2_800

    serve(tmp_path, scenario)


def test_the_tail_of_a_topic_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        assert (await client.get("/console/topics/none/tail/events")).status == 404

    serve(tmp_path, scenario)


def test_a_form_that_cannot_be_read_is_refused_on_a_page(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        for answer in (
            await client.ask("POST", "/console/topics", data=b"name=%ff", headers=FORM),
            await client.get("/console/topics?%ff"),
        ):
            assert answer.status == 400
            assert answer.headers["content-type"].startswith("text/html")
            assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY.decode()

    serve(tmp_path, scenario)


@pytest.mark.parametrize("number", ["9" * 5_000, "-1", "1e3", "٣"])
def test_a_text_that_is_no_number_is_no_number_for_any_form(number: str, tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.ask("POST", "/v1/topics", json={"name": "sales", "partition_count": 1})
        reader = Reader(client)
        for query in (f"partition=0&order=offset&offset={number}", f"partition={number}", f"count={number}", f"go_on=0-{number}"):
            status, _ = await reader.get(f"/console/topics/sales/records?{query}")
            assert status == 200
        assert (await reader.post("/console/topics", "/console/topics", f"name=other&partition_count={number}"))[0] == 400

    serve(tmp_path, scenario)


def test_a_value_of_a_record_that_is_not_there_is_no_empty_file(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.ask("POST", "/v1/topics", json={"name": "sales", "partition_count": 1})
        assert (await client.get("/console/topics/sales/records/0/0/value")).status == 404

    serve(tmp_path, scenario)


def test_a_download_that_fails_in_the_middle_ends_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0

    async def fails_second(self: ApiClient, *path: str, **query: Any) -> Any:
        nonlocal reads
        reads += path[-1] == "records"
        if reads == 2:
            raise ApiRefused(503, {"code": "UNAVAILABLE"})
        return await get(self, *path, **query)

    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.ask("POST", "/v1/topics", json={"name": "sales", "partition_count": 1})
        await client.produce("/v1/topics/sales/records", [{"value": number} for number in range(700)])
        with pytest.raises(aiohttp.ClientPayloadError):
            await client.get("/console/topics/sales/download")

    get = ApiClient.get
    monkeypatch.setattr(ApiClient, "get", fails_second)
    serve(tmp_path, scenario)


@pytest.mark.parametrize("path", ["/consolefoo", "/console-x/y", "/consoles/topics"])
def test_a_path_that_only_begins_like_the_console_is_none_of_it(path: str, tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        answer = await client.get(path)
        assert (answer.status, answer.headers["content-type"]) == (404, "application/problem+json")

    serve(tmp_path, scenario)


def test_first_requests_at_the_same_time_get_one_console(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        readers = [Reader(client) for _ in range(5)]
        await asyncio.gather(*(reader.get("/console/topics") for reader in readers))
        for number, reader in enumerate(readers):
            made = await reader.post("/console/topics", "/console/topics", f"name=sales-{number}&partition_count=1")
            assert made[0] == 303, "its session is known"

    serve(tmp_path, scenario)


def test_a_large_record_is_laid_out_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown_in: list[int] = []

    def noted(*given: Any, **named: Any) -> Any:
        shown_in.append(threading.get_ident())
        return shown_record(*given, **named)

    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.produce("/v1/topics/single/records", [{"value": "x" * 300_000}])
        status, html = await Reader(client).get("/console/topics/single/records/0/0")
        assert status == 200
        assert "Only the beginning is shown" in html
        assert shown_in
        assert threading.get_ident() not in shown_in

    monkeypatch.setattr("gateway.console.pages.records.shown_record", noted)
    serve(tmp_path, scenario)


def test_a_group_whose_name_holds_a_slash_is_listed_shown_moved_and_deleted(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        commit = {"offsets": [{"topic": "single", "partition": 0, "offset": 0}]}
        path = URL("/v1/groups/team%2Fbilling%20a/offsets", encoded=True)
        assert (await client.ask("POST", path, json=commit)).status == 200
        reader = Reader(client)
        page = "/console/groups/team%2Fbilling%20a"
        assert f'href="{page}"' in (await reader.get("/console/groups"))[1]
        status, html = await reader.get(URL(page, encoded=True))
        assert status == 200
        assert "team/billing a" in html
        status, html = await reader.post(URL(page, encoded=True), URL(f"{page}/seek", encoded=True), "to=latest&point=")
        assert "What would change" in html
        deleted = await reader.post(URL(page, encoded=True), URL(f"{page}/delete", encoded=True), "confirmation=team%2Fbilling+a")
        assert deleted == (303, "/console/groups")
        assert (await reader.get("/console/topics/a%2Fb/records"))[0] == 400

    serve(tmp_path, scenario)
