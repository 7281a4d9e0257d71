from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from metadata.errors import NotCoordinator
from tests.kit.gateway.http_client import Client, serve
from tests.kit.gateway.http_members import HttpMember
from tests.kit.gateway.small_broker import SmallBroker

pytestmark = pytest.mark.slow

ORDERS = [("orders", 0), ("orders", 1), ("orders", 2)]


async def produce(client: Client, count: int, *, first: int = 0, topic: str = "orders") -> None:
    """Values first, first + 1, … in turn over three partitions."""
    records = [{"value": first + at, "partition": at % 3} for at in range(count)]
    assert (await client.produce(f"/v1/topics/{topic}/records", records)).status == 200


async def committed(client: Client, group: str = "g") -> dict[tuple[str, int], int]:
    reported = (await client.get(f"/v1/groups/{group}/offsets")).json["offsets"]
    return {(offset["topic"], offset["partition"]): offset["offset"] for offset in reported}


def test_a_member_joins_reads_commits_and_leaves(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 7)
        member = HttpMember(client, "g", client_id="script")
        joined = await member.join()
        assert joined.status == 201
        assert joined.headers["location"] == member.member_path
        assert joined.json == {
            "member_id": "script-1",
            "generation": 1,
            "assignor": "cooperative-sticky",
            "leader": True,
            "session_timeout_ms": 45_000,
            "rebalance_timeout_ms": 60_000,
            "assignment": [{"topic": "orders", "partitions": [0, 1, 2]}],
        }
        found = await member.read()
        assert found.json.keys() == {"records", "cursor"}
        assert sorted(member.values) == list(range(7))
        first = found.json["records"][0]
        assert first | {"timestamp": 0} == {
            "topic": "orders", "partition": 0, "offset": 0, "timestamp": 0, "key": None, "value": 0, "headers": [],
        }  # fmt: skip
        assert (await member.read()).json["records"] == []
        beat = await member.heartbeat()
        assert (beat.status, beat.body, "content-length" in beat.headers) == (204, b"", False)
        reported = await member.commit()
        assert reported.json["offsets"] == [
            {"topic": "orders", "partition": partition, "offset": offset} for partition, offset in ((0, 3), (1, 2), (2, 2))
        ]
        assert await committed(client) == {("orders", 0): 3, ("orders", 1): 2, ("orders", 2): 2}
        assert (await member.leave()).status == 204
        assert await client.refused(member.read()) == (409, "UNKNOWN_MEMBER")

    serve(tmp_path, scenario)


def test_a_leave_whose_answer_was_lost_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        member = HttpMember(client, "g")
        await member.join()
        leave = broker.groups.leave

        async def lose_the_answer(*asked: Any) -> Any:
            monkeypatch.setattr(broker.groups, "leave", leave)
            await leave(*asked)
            raise NotCoordinator("its answer was lost")

        monkeypatch.setattr(broker.groups, "leave", lose_the_answer)
        assert (await member.leave()).status == 204
        assert await client.refused(member.leave()) == (409, "UNKNOWN_MEMBER")

    serve(tmp_path, scenario)


def test_reading_changes_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 30)
        member = HttpMember(client, "g")
        await member.join()
        await member.read(max_records=4)
        cursor = member.cursor
        once = await member.read(max_records=4)
        assert (await member.read(max_records=4, cursor=cursor)).body == once.body
        assert await committed(client) == {}
        while (await member.read(max_records=4)).json["records"]:
            pass
        assert {record["value"] for record in member.records} == set(range(30))

    serve(tmp_path, scenario)


def test_the_next_member_begins_at_what_is_committed(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 9)
        member = HttpMember(client, "g")
        await member.join()
        await member.read()
        await member.commit()
        await produce(client, 3, first=9)
        await member.read()
        await member.leave()
        heir = HttpMember(client, "g")
        await heir.join()
        await heir.read()
        assert sorted(heir.values) == [9, 10, 11]

    serve(tmp_path, scenario)


def test_records_are_committed_along_with_the_next_read(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 6)
        member = HttpMember(client, "g")
        await member.join()
        await member.read(commit="true")
        assert await committed(client) == {}
        await member.read(commit="true")
        assert await committed(client) == dict.fromkeys(ORDERS, 2)

    serve(tmp_path, scenario)


def test_a_read_that_commits_its_cursor_and_is_repeated_late_takes_no_committed_offset_back(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 36)
        member = HttpMember(client, "g")
        await member.join()
        cursors: list[str] = []
        for _ in range(4):
            await member.read(commit="true", max_records=9)
            cursors.append(member.cursor)
        await member.commit()
        assert sum((await committed(client)).values()) == 36
        for late in cursors[:-1]:
            assert (await member.read(commit="true", cursor=late)).status == 200
            assert (await member.commit(cursor=late)).status == 200
            assert sum((await committed(client)).values()) == 36
        back = [{"topic": "orders", "partition": 0, "offset": 2}]
        assert (await member.commit(offsets=back)).status == 200
        assert (await committed(client))["orders", 0] == 2, "an offset that is named may go back"

    serve(tmp_path, scenario)


def test_a_member_reads_from_the_end_where_it_asks_for_that_and_misses_nothing_from_then_on(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 6)
        member = HttpMember(client, "g")
        await member.join()
        assert (await member.read(auto_offset_reset="latest")).json["records"] == []
        await produce(client, 3, first=6)
        await member.read(auto_offset_reset="latest")
        assert sorted(member.values) == [6, 7, 8]
        await member.commit()
        assert await committed(client) == dict.fromkeys(ORDERS, 3)

    serve(tmp_path, scenario)


def test_no_partition_starves_the_others(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 90)
        member = HttpMember(client, "g")
        await member.join()
        turns = []
        for _ in range(6):
            found = (await member.read(max_records=5)).json["records"]
            turns.append({record["partition"] for record in found})
        assert turns == [{0}, {1}, {2}] * 2

    serve(tmp_path, scenario)


def test_two_members_share_the_partitions_after_the_first_is_asked_to_rejoin(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 30)
        one, two = HttpMember(client, "g", client_id="one"), HttpMember(client, "g", client_id="two")
        await one.join()
        await one.read(max_records=5)
        joining = asyncio.create_task(two.join())
        while (beat := await one.heartbeat()).status == 204:  # noqa: ASYNC110  # the other is on its way
            await asyncio.sleep(0.001)
        assert (beat.status, beat.json["code"]) == (409, "REBALANCE_IN_PROGRESS")
        assert f"POST {one.path}/members with this member_id" in beat.json["hint"]
        assert await client.refused(one.read()) == (409, "REBALANCE_IN_PROGRESS")
        assert (await one.commit()).status == 200, "what was read may still be committed"
        old = one.member_id, one.generation, one.cursor
        await one.join()
        await joining
        assert (one.member_id, one.generation) == (old[0], old[1] + 1) == (old[0], two.generation)
        assert sorted(one.assignment + two.assignment) == ORDERS
        assert sorted((len(one.assignment), len(two.assignment))) == [1, 2]
        assert await client.refused(one.read(generation=old[1])) == (409, "STALE_GENERATION")
        assert await client.refused(one.read(cursor=old[2])) == (409, "STALE_GENERATION")
        for member in (one, two):
            while (await member.read(max_records=5)).json["records"]:
                pass
        assert sorted(one.values + two.values) == list(range(30))

    serve(tmp_path, scenario)


def test_a_long_poll_ends_when_records_come(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        member = HttpMember(client, "g")
        await member.join()
        reading = asyncio.create_task(member.read(wait_ms=60_000))
        await asyncio.sleep(0)
        await produce(client, 1)
        assert (await reading).json["records"][0]["value"] == 0

    serve(tmp_path, scenario)


def test_a_long_poll_ends_when_a_rebalance_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.groups.records.HEARTBEAT_S", 0.02)

    async def scenario(broker: SmallBroker, client: Client) -> None:
        one, two = HttpMember(client, "g"), HttpMember(client, "g")
        await one.join()
        reading = asyncio.create_task(one.read(wait_ms=60_000))
        joining = asyncio.create_task(two.join())
        assert await client.refused(reading) == (409, "REBALANCE_IN_PROGRESS")
        await one.join()
        assert (await joining).status == 201

    serve(tmp_path, scenario)
