"""What operators ask of groups over HTTP."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gateway.http.groups import bodies
from tests.gateway.http.groups.test_routes import ORDERS, committed, produce
from tests.kit.gateway.http_client import Client, serve
from tests.kit.gateway.http_members import HttpMember
from tests.kit.gateway.small_broker import SmallBroker

pytestmark = pytest.mark.slow


def test_a_group_is_described_with_its_members_and_lag(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 9)
        member = HttpMember(client, "g", client_id="script", topics=["orders"])
        await member.join()
        await member.read(max_records=3)
        await member.commit()
        reported = (await client.get("/v1/groups/g")).json
        assert {name: reported[name] for name in ("group", "state", "generation", "protocol_type", "protocol", "leader")} == {
            "group": "g",
            "state": "Stable",
            "generation": 1,
            "protocol_type": "consumer",
            "protocol": "cooperative-sticky",
            "leader": "script-1",
        }
        assert reported["coordinator"] == "broker-1"
        assert reported["members"] == [
            {
                "member_id": "script-1",
                "instance_id": "",
                "client_id": "script",
                "client_host": "127.0.0.1",
                "session_timeout_ms": 45_000,
                "rebalance_timeout_ms": 60_000,
                "assignment": [{"topic": "orders", "partitions": [0, 1, 2]}],
            }
        ]
        assert reported["lag_records"] == 6
        assert [(lag["partition"], lag["committed_offset"], lag["lag_records"], lag["member_id"]) for lag in reported["lags"]] == [
            (0, 3, 0, "script-1"),
            (1, None, 3, "script-1"),
            (2, None, 3, "script-1"),
        ]
        assert reported["lag_seconds"] == max(lag["lag_seconds"] for lag in reported["lags"])
        assert await client.refused(client.get("/v1/groups/unknown")) == (404, "UNKNOWN_GROUP")

    serve(tmp_path, scenario)


def test_groups_are_listed_by_pages_and_states(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await HttpMember(client, "lively").join()
        for name in ("quiet", "silent"):
            body = {"offsets": [{"topic": "orders", "partition": 0, "offset": 1}]}
            assert (await client.ask("POST", f"/v1/groups/{name}/offsets", json=body)).status == 200
        first = (await client.get("/v1/groups?page_size=2")).json
        second = (await client.get(f"/v1/groups?page_size=2&page_token={first['next_page_token']}")).json
        assert [group["group"] for group in first["groups"] + second["groups"]] == ["lively", "quiet", "silent"]
        assert second["next_page_token"] == ""
        assert first["groups"][0] == {
            "group": "lively",
            "state": "Stable",
            "protocol_type": "consumer",
            "members": 1,
            "coordinator": "broker-1",
        }
        assert [group["group"] for group in (await client.get("/v1/groups?state=Stable")).json["groups"]] == ["lively"]
        assert len((await client.get("/v1/groups?state=Stable,empty")).json["groups"]) == 3

    serve(tmp_path, scenario)


def test_a_dry_run_of_a_seek_returns_the_moves_that_the_seek_then_makes(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 9)
        member = HttpMember(client, "g")
        await member.join()
        await member.read()
        await member.commit()
        assert await client.refused(client.ask("POST", "/v1/groups/g/seek", json={"to": "earliest"})) == (409, "GROUP_NOT_EMPTY")
        await member.leave()
        topic_id = (await client.get("/v1/topics/orders")).json["id"]
        plan = await client.ask("POST", "/v1/groups/g/seek?validate_only=true", json={"to": {"shift": -1}})
        rows = [{"topic": "orders", "topic_id": topic_id, "partition": at, "before": 3, "after": 2} for at in range(3)]
        assert plan.json == {"moved": rows}
        assert await committed(client) == dict.fromkeys(ORDERS, 3)
        assert (await client.ask("POST", "/v1/groups/g/seek", json={"to": {"shift": -1}})).json == plan.json
        assert await committed(client) == dict.fromkeys(ORDERS, 2)
        some = {"to": "earliest", "topics": [{"topic": "orders", "partitions": [1]}]}
        assert len((await client.ask("POST", "/v1/groups/g/seek", json=some)).json["moved"]) == 1
        assert await committed(client) == {("orders", 0): 2, ("orders", 1): 0, ("orders", 2): 2}
        for to, after in (("latest", 3), ({"timestamp": "2020-01-01T00:00:00Z"}, 0), ({"timestamp": 0}, 0), ({"offset": 99}, 3)):
            await client.ask("POST", "/v1/groups/g/seek", json={"to": to})
            assert set((await committed(client)).values()) == {after}, to
        beyond = await client.ask("POST", "/v1/groups/g/seek?validate_only=true", json={"to": {"offset": 99}})
        assert [(row["after"], row["reason"], row["asked"]) for row in beyond.json["moved"]] == [(3, "BEYOND_END", 99)] * 3
        later = await client.ask("POST", "/v1/groups/g/seek", json={"to": {"timestamp": "2999-01-01T00:00:00Z"}})
        assert [(row["after"], row["reason"], "asked" in row) for row in later.json["moved"]] == [(3, "NO_RECORD_SINCE", False)] * 3
        assert await client.refused(client.ask("POST", "/v1/groups/none/seek", json={"to": "latest"})) == (404, "UNKNOWN_GROUP")

    serve(tmp_path, scenario)


def test_offsets_and_groups_are_deleted(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        offsets = [{"topic": topic, "partition": 0, "offset": 4, "metadata": "m"} for topic in ("orders", "single")]
        assert (await client.ask("POST", "/v1/groups/g/offsets", json={"offsets": offsets})).status == 200
        asked = await client.ask("DELETE", "/v1/groups/g/offsets?topic=orders&partitions=0,1&validate_only=true")
        [deleted] = asked.json["deleted"]
        assert (deleted["topic"], deleted["offset"], deleted["metadata"]) == ("orders", 4, "m")
        assert len(await committed(client)) == 2
        for partitions in ("2147483648", "9999999999", "-1", "x"):
            beyond = client.ask("DELETE", f"/v1/groups/g/offsets?topic=orders&partitions={partitions}")
            assert await client.refused(beyond) == (400, "INVALID_ARGUMENT"), partitions
        assert (await client.ask("DELETE", "/v1/groups/g/offsets?topic=orders&partitions=0,1")).json == asked.json
        assert await committed(client) == {("single", 0): 4}
        assert (await client.ask("DELETE", "/v1/groups/g?validate_only=true")).status == 204
        assert await committed(client) == {("single", 0): 4}
        member = HttpMember(client, "g")
        await member.join()
        assert await client.refused(client.ask("DELETE", "/v1/groups/g")) == (409, "GROUP_NOT_EMPTY")
        assert await client.refused(client.ask("DELETE", "/v1/groups/g/offsets?topic=orders")) == (409, "GROUP_SUBSCRIBED_TO_TOPIC")
        await member.leave()
        deleted_group = await client.ask("DELETE", "/v1/groups/g")
        assert (deleted_group.status, deleted_group.body) == (204, b"")
        assert (await client.get("/v1/groups/g/offsets")).json == {"offsets": []}
        assert await client.refused(client.ask("DELETE", "/v1/groups/g")) == (404, "UNKNOWN_GROUP")

    serve(tmp_path, scenario)


def test_committed_offsets_are_listed_of_one_topic_or_of_all(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        offsets = [{"topic": topic, "partition": 0, "offset": 4, "leader_epoch": 7} for topic in ("single", "orders")]
        assert (await client.ask("POST", "/v1/groups/g/offsets", json={"offsets": offsets})).status == 200
        reported = (await client.get("/v1/groups/g/offsets")).json["offsets"]
        assert [(offset["topic"], offset["leader_epoch"]) for offset in reported] == [("orders", 7), ("single", 7)]
        assert len((await client.get("/v1/groups/g/offsets?topic=single")).json["offsets"]) == 1
        await broker.delete_topic("single")
        assert await committed(client) == {("orders", 0): 4}

    serve(tmp_path, scenario)


def test_the_examples_of_the_interface_are_taken(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        taken = (bodies.NewMember, bodies.Heartbeat, bodies.MemberCommit, bodies.Commit, bodies.Seek)
        examples = {body: msgspec.json.decode(body.example) for body in taken}
        assert (await client.ask("POST", "/v1/groups/g/offsets", json=examples[bodies.Commit])).status == 200
        assert (await client.ask("POST", "/v1/groups/g/seek", json=examples[bodies.Seek])).status == 200
        joined = (await client.ask("POST", "/v1/groups/g/members", json=examples[bodies.NewMember])).json
        at = f"/v1/groups/g/members/{joined['member_id']}"
        now = {"generation": joined["generation"]}
        assert (await client.ask("POST", f"{at}/heartbeat", json=examples[bodies.Heartbeat] | now)).status == 204
        assert (await client.ask("POST", f"{at}/offsets", json=examples[bodies.MemberCommit] | now)).status == 200

    serve(tmp_path, scenario)
