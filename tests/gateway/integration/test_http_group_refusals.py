"""What members over HTTP are refused with: every 4xx, with its code, and with what to do instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from yarl import URL

from metadata.groups.settings import GroupSettings
from tests.gateway.http.groups.test_routes import committed, produce
from tests.kit.gateway.http_client import Client, client_of, serve
from tests.kit.gateway.http_members import HttpMember
from tests.kit.gateway.small_broker import SmallBroker, with_broker

pytestmark = pytest.mark.slow

INVALID = (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("body", "expected", "field"),
    [
        ({}, INVALID, None),
        ([], INVALID, None),
        ({"topics": []}, INVALID, "topics"),
        ({"topics": "orders"}, INVALID, "topics"),
        ({"topics": [1]}, INVALID, "topics[0]"),
        ({"topics": ["nothing"]}, (404, "UNKNOWN_TOPIC"), None),
        ({"topics": ["a/b"]}, (400, "INVALID_NAME"), None),
        ({"topics": ["orders"], "member": "x"}, INVALID, None),
        ({"topics": ["orders"], "member_id": "x"}, (409, "UNKNOWN_MEMBER"), None),
        ({"topics": ["orders"], "member_id": "x" * 601}, INVALID, "member_id"),
        ({"topics": ["orders"], "instance_id": "x" * 250}, INVALID, "instance_id"),
        ({"topics": ["orders"], "instance_id": "\n"}, INVALID, "instance_id"),
        ({"topics": ["orders"], "client_id": "x" * 250}, INVALID, "client_id"),
        ({"topics": ["orders"], "session_timeout_ms": 0}, INVALID, "session_timeout_ms"),
        ({"topics": ["orders"], "session_timeout_ms": 5_999}, INVALID, "session_timeout_ms"),
        ({"topics": ["orders"], "session_timeout_ms": 2**31}, INVALID, "session_timeout_ms"),
        ({"topics": ["orders"], "session_timeout_ms": 1e9}, INVALID, "session_timeout_ms"),
        ({"topics": ["orders"], "rebalance_timeout_ms": 0}, INVALID, "rebalance_timeout_ms"),
        ({"topics": ["orders"], "assignors": ["rnage"]}, INVALID, "assignors"),
        ({"topics": ["orders"], "assignors": ["range", "range"]}, INVALID, "assignors"),
    ],
)
def test_a_join_that_can_not_be_is_refused(tmp_path: Path, body: Any, expected: tuple[int, str], field: str | None) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        answer = await client.ask("POST", "/v1/groups/g/members", json=body)
        assert await client.refused(_given(answer)) == expected
        assert answer.json.get("field") == field, answer.json
        assert answer.json["hint"]

    serve(tmp_path, scenario)


async def _given(answer: Any) -> Any:
    return answer


def test_a_mistyped_word_gets_a_hint_with_the_right_one(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        async def hint(method: str, path: str, body: Any = None) -> str:
            return str((await client.ask(method, path, json=body)).json["hint"])

        assert "Did you mean 'topics'?" in await hint("POST", "/v1/groups/g/members", {"topcis": ["orders"]})
        assert "Did you mean 'range'?" in await hint("POST", "/v1/groups/g/members", {"topics": ["orders"], "assignors": ["rnage"]})
        assert "Did you mean 'orders'?" in await hint("POST", "/v1/groups/g/members", {"topics": ["order"]})
        assert "Did you mean 'cursor'?" in await hint("GET", "/v1/groups/g/members/m/records?generation=1&cusror=x")
        assert "Did you mean 'latest'?" in await hint("POST", "/v1/groups/g/seek", {"to": "lastest"})
        assert "Did you mean /v1/groups/g/members?" in await hint("POST", "/v1/groups/g/member", {})
        assert "Did you mean /v1/groups/g/members/m/records?" in await hint("GET", "/v1/group/g/members/m/records")

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"generation": ""}, INVALID),
        ({"generation": "x"}, INVALID),
        ({"generation": -1}, INVALID),
        ({"generation": 2**31}, INVALID),
        ({"generation": 7}, (409, "STALE_GENERATION")),
        ({"cursor": "x"}, INVALID),
        ({"cursor": "a" * 20_000}, INVALID),
        ({"commit": "yes"}, INVALID),
        ({"auto_offset_reset": "none"}, INVALID),
        ({"max_records": 0}, INVALID),
        ({"max_bytes": 0}, INVALID),
        ({"wait_ms": 60_001}, INVALID),
        ({"key_format": "xml"}, INVALID),
        ({"offset": 3}, INVALID),
        ({"value_format": "json"}, INVALID),
    ],
)
def test_a_read_that_can_not_be_is_refused(tmp_path: Path, query: dict[str, Any], expected: tuple[int, str]) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.post("/v1/topics/orders/records", b'{"records": [{"value": {"type": "binary", "data": "/w=="}}]}')
        member = HttpMember(client, "g")
        await member.join()
        assert await client.refused(member.read(**query)) == expected
        assert (await member.read()).status == 200

    serve(tmp_path, scenario)


def test_a_cursor_is_of_one_member_of_one_group(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 6)
        one, other = HttpMember(client, "g"), HttpMember(client, "h")
        for member in (one, other):
            await member.join()
            await member.read()
        assert await client.refused(one.read(cursor=other.cursor)) == INVALID
        assert await client.refused(one.commit(cursor=other.cursor)) == INVALID
        assert await client.refused(one.commit(cursor=one.cursor[:-3])) == INVALID
        one.generation += 1
        assert await client.refused(one.commit()) == (409, "STALE_GENERATION")
        assert await committed(client) == {}

    serve(tmp_path, scenario)


def test_answers_are_json_and_nothing_else(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        member = HttpMember(client, "g")
        await member.join()
        accept = {"accept": "application/x-ndjson"}
        asked = client.ask("GET", f"{member.member_path}/records?generation=1", headers=accept)
        assert await client.refused(asked) == (406, "NOT_ACCEPTABLE")
        assert await client.refused(client.post("/v1/groups/g/members", b"topics=orders", "text/plain")) == (
            415,
            "UNSUPPORTED_MEDIA_TYPE",
        )
        assert await client.refused(client.post("/v1/groups/g/members", b'{"topics": ["orders"')) == INVALID
        assert await client.refused(client.post("/v1/groups/g/members", b"")) == INVALID
        assert await client.refused(client.post("/v1/groups/g/members", b"[" * 9_000)) == INVALID
        assert await client.refused(client.post("/v1/groups/g/members", b" " * (1 << 21))) == (413, "TOO_LARGE")

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v1/groups", "GET"),
        ("PUT", "/v1/groups/g", "GET, DELETE"),
        ("GET", "/v1/groups/g/members", "POST"),
        ("POST", "/v1/groups/g/members/m", "DELETE"),
        ("GET", "/v1/groups/g/members/m/heartbeat", "POST"),
        ("POST", "/v1/groups/g/members/m/records", "GET"),
        ("GET", "/v1/groups/g/members/m/offsets", "POST"),
        ("PATCH", "/v1/groups/g/offsets", "GET, POST, DELETE"),
        ("GET", "/v1/groups/g/seek", "POST"),
    ],
)
def test_a_method_that_is_not_allowed_returns_405_with_an_allow_header(
    tmp_path: Path, method: str, path: str, allowed: str
) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        answer = await client.ask(method, path)
        assert (answer.status, answer.json["code"], answer.headers["allow"]) == (405, "METHOD_NOT_ALLOWED", allowed)

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/groups?states=Empty", None),
        ("GET", "/v1/groups?state=Asleep", None),
        ("GET", "/v1/groups?page_size=1001", None),
        ("GET", "/v1/groups?page_token=nonsense", None),
        ("GET", "/v1/groups/g?verbose=true", None),
        ("DELETE", "/v1/groups/g?validate_onyl=true", None),
        ("DELETE", "/v1/groups/g?validate_only=yes", None),
        ("DELETE", "/v1/groups/g", {"validate_only": True}),
        ("POST", "/v1/groups/g/members?validate_only=true", {"topics": ["orders"]}),
        ("POST", "/v1/groups/g/members/m/heartbeat", {}),
        ("POST", "/v1/groups/g/members/m/heartbeat", {"generation": -1}),
        ("POST", "/v1/groups/g/members/m/offsets", {"generation": 1}),
        ("POST", "/v1/groups/g/members/m/offsets", {"generation": 1, "offsets": [], "cursor": ""}),
        ("POST", "/v1/groups/g/members/m/offsets", {"generation": 1, "cursor": ""}),
        ("DELETE", "/v1/groups/g/offsets", None),
        ("DELETE", "/v1/groups/g/offsets?topic=orders&partitions=1,", None),
        ("GET", "/v1/groups/g/offsets?partition=1", None),
        ("POST", "/v1/groups/g/offsets", {"offsets": [{"topic": "orders", "partition": 0}]}),
        ("POST", "/v1/groups/g/offsets", {"offsets": [{"topic": "orders", "partition": 0, "offset": -1}]}),
        ("POST", "/v1/groups/g/offsets", {"offsets": [{"topic": "orders", "partition": 0, "offset": 2**63}]}),
        ("POST", "/v1/groups/g/offsets", {"offsets": [{"topic": "orders", "partition": 0, "offset": 1}] * 2}),
        ("POST", "/v1/groups/g/offsets", {"generation": 1, "offsets": []}),
        ("POST", "/v1/groups/g/seek", {}),
        ("POST", "/v1/groups/g/seek", {"to": "here"}),
        ("POST", "/v1/groups/g/seek", {"to": {}}),
        ("POST", "/v1/groups/g/seek", {"to": {"offset": 1, "shift": 1}}),
        ("POST", "/v1/groups/g/seek", {"to": {"offset": -1}}),
        ("POST", "/v1/groups/g/seek", {"to": {"shift": 2**63}}),
        ("POST", "/v1/groups/g/seek", {"to": {"timestamp": "yesterday"}}),
        ("POST", "/v1/groups/g/seek", {"to": {"timestamp": -1}}),
        ("POST", "/v1/groups/g/seek", {"to": "latest", "topics": [{"topic": "orders", "partition": 1}]}),
    ],
)
def test_a_request_with_a_mistake_in_it_changes_nothing(tmp_path: Path, method: str, path: str, body: Any) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        assert (await client.ask("POST", "/v1/groups/g/offsets", json={"offsets": [_at(3)]})).status == 200
        asked = client.ask(method, path, json=body) if body is not None else client.ask(method, path)
        assert await client.refused(asked) == INVALID
        assert await committed(client) == {("orders", 1): 3}

    serve(tmp_path, scenario)


def _at(offset: int, partition: int = 1, topic: str = "orders", **more: Any) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "offset": offset, **more}


def test_offsets_that_cannot_be_committed_carry_their_errors(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        offsets = [
            _at(3),
            _at(3, partition=9),
            _at(3, topic="nothing"),
            _at(3, topic="a/b"),
            _at(3, partition=0, topic_id="f" * 32),
            _at(3, partition=2, metadata="x" * 5_000),
        ]
        answer = await client.ask("POST", "/v1/groups/g/offsets", json={"offsets": offsets})
        assert answer.status == 200
        reported = answer.json["offsets"]
        assert [(offset["topic"], offset["partition"]) for offset in reported] == [(at["topic"], at["partition"]) for at in offsets]
        assert [offset.get("error", {}).get("code") for offset in reported] == [
            None,
            "UNKNOWN_PARTITION",
            "UNKNOWN_TOPIC",
            "INVALID_NAME",
            "UNKNOWN_TOPIC",
            "TOO_LARGE",
        ]
        assert all(offset["error"]["nothing_was_written"] for offset in reported[1:])
        assert await committed(client) == {("orders", 1): 3}

    serve(tmp_path, scenario)


def test_a_commit_by_hand_is_refused_while_the_group_has_members(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await HttpMember(client, "g").join()
        answer = await client.ask("POST", "/v1/groups/g/offsets", json={"offsets": [_at(3)]})
        assert (answer.status, answer.json["code"]) == (409, "UNKNOWN_MEMBER")
        assert "stop its members first" in answer.json["hint"]

    serve(tmp_path, scenario)


@pytest.mark.parametrize("name", ["a/b", "naïve ☕", "a%2Fb", "...", "team a?x=1#y", "+"])
def test_a_group_may_have_any_name(tmp_path: Path, name: str) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 3)
        member = HttpMember(client, name, client_id="pod/1")
        joined = await member.join()
        assert (joined.status, joined.headers["location"]) == (201, member.member_path)
        await member.read()
        assert len(member.records) == 3
        assert (await member.commit()).status == 200
        [listed] = (await client.get("/v1/groups")).json["groups"]
        assert listed["group"] == name
        described = (await client.ask("GET", URL(f"/v1/groups/{quote(name, safe='')}", encoded=True))).json
        assert described["members"][0]["member_id"].startswith("pod/1-")
        assert (await member.leave()).status == 204

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    ("name", "code"),
    [("", "INVALID_GROUP_NAME"), ("%0A", "INVALID_GROUP_NAME"), ("x" * 250, "INVALID_GROUP_NAME"), ("%FF", "INVALID_NAME")],
)
def test_a_text_that_is_no_name_of_a_group_is_refused(tmp_path: Path, name: str, code: str) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        path = URL(f"/v1/groups/{name}/members", encoded=True)
        assert await client.refused(client.ask("POST", path, json={"topics": ["orders"]})) == (400, code)
        elsewhere = URL("/v1/topics/a%2Fb/records", encoded=True)
        assert await client.refused(client.ask("GET", elsewhere)) == (400, "INVALID_NAME"), "topics have no slashes"

    serve(tmp_path, scenario)


def test_a_group_of_members_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        member = HttpMember(client, "g", assignors=["range"])
        await member.join()
        other = HttpMember(client, "g", assignors=["sticky"])
        assert await client.refused(other.join()) == (400, "INCONSISTENT_PROTOCOL")
        assert (await member.heartbeat()).status == 204

    serve(tmp_path, scenario)


def test_a_full_group_takes_no_more(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker) -> None:
        async with client_of(broker) as client:
            await HttpMember(client, "g").join()
            assert await client.refused(HttpMember(client, "g").join()) == (409, "GROUP_FULL")

    with_broker(tmp_path, scenario, groups=GroupSettings(group_initial_rebalance_delay_ms=20, group_members_max=1))


def test_a_value_in_another_format_than_asked_for_is_reported_with_its_offset(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.produce("/v1/topics/orders/records?partition=2", [{"value": "no json {"}])
        member = HttpMember(client, "g")
        await member.join()
        answer = await member.read(value_format="json")
        assert (answer.status, answer.json["code"]) == INVALID
        assert answer.json["detail"].startswith("partition 2 of topic orders, offset 0:")

    serve(tmp_path, scenario)


def test_a_position_outside_of_the_log_is_reset_and_the_reset_is_reported(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 3)
        offsets = {"offsets": [_at(1_000, partition=0), _at(1, partition=1), _at(1, partition=2)]}
        assert (await client.ask("POST", "/v1/groups/g/offsets", json=offsets)).status == 200
        member = HttpMember(client, "g")
        await member.join()
        answer = (await member.read()).json
        assert answer["resets"] == [{"topic": "orders", "partition": 0, "before": 1_000, "after": 0}]
        assert member.values == [0]
        assert "resets" not in (await member.read()).json

    serve(tmp_path, scenario)


def test_an_answer_is_no_larger_than_was_asked_for(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.produce("/v1/topics/orders/records?partition=0", [{"value": "x" * 1_000}] * 200)
        member = HttpMember(client, "g")
        await member.join()
        sizes = []
        while len(member.records) < 200:
            sizes.append(len((await member.read(max_bytes=10_000)).body))
        assert max(sizes) < 150_000
        assert len(sizes) > 1

    serve(tmp_path, scenario)
