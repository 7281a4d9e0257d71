"""Members over HTTP beside others: of every make, silent, hung up, restarted, and with new partitions to share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

import grpc.aio
import pytest

from gateway.http.groups.records import WAITED_S
from gateway.proto import groups_pb2
from gateway.topics.names import partition_of
from metadata.errors import NotCoordinator
from metadata.group_member.member import GroupMember
from metadata.group_member.settings import MemberSettings
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.consumer_protocol import Subscription, decode_assignment, encode_assignment, encode_subscription
from metadata.groups.model import GroupPhase
from metadata.groups.settings import GroupSettings
from metadata.model import LeaderEpoch
from segments.recovery.recovered_partition import empty_partition
from tests.gateway.http.groups.test_routes import ORDERS, committed, produce
from tests.kit.gateway.group_calls import GroupCalls
from tests.kit.gateway.http_client import Client, client_of
from tests.kit.gateway.http_members import HttpMember
from tests.kit.gateway.small_broker import SmallBroker, until, with_broker

pytestmark = pytest.mark.slow

QUICK = GroupSettings(group_initial_rebalance_delay_ms=20, group_session_timeout_ms_min=50, commit_linger_ms=0)

# For members that join at the same moment, on a machine that is busy.
TOGETHER = GroupSettings(group_initial_rebalance_delay_ms=500, group_session_timeout_ms_min=50, commit_linger_ms=0)
QUICK_AND_SMALL = GroupSettings(group_initial_rebalance_delay_ms=20, group_metadata_bytes_max=10_000)


def serve(tmp_path: Path, scenario: Callable[[SmallBroker, Client], Awaitable[None]], *, groups: GroupSettings = QUICK) -> None:
    async def with_client(broker: SmallBroker) -> None:
        async with client_of(broker) as client:
            await scenario(broker, client)

    with_broker(tmp_path, with_client, groups=groups)


async def joined_by(broker: SmallBroker, count: int, group: str = "g") -> None:
    """So many members are in the group, or wait at its barrier."""
    while len((await broker.coordinated_groups.describe(group)).members) != count:  # noqa: ASYNC110  # it sets no event
        await asyncio.sleep(0.001)


class Reader:
    """A RebalanceListener that only notes what it owns."""

    def __init__(self, *topics: str) -> None:
        self.topics = topics
        self.owned: set[TopicPartitionName] = set()

    def subscribed(self) -> Mapping[str, int]:
        return dict.fromkeys(self.topics, 3)

    async def partition_counts(self, topics: Collection[str]) -> Mapping[str, int]:
        return dict.fromkeys(topics, 3)

    async def assigned(self, partitions: frozenset[TopicPartitionName]) -> None:
        self.owned |= partitions

    async def revoked(self, partitions: frozenset[TopicPartitionName]) -> None:
        self.owned -= partitions

    async def lost(self, partitions: frozenset[TopicPartitionName]) -> None:
        self.owned -= partitions


async def keep_on(member: HttpMember, done: Callable[[], bool]) -> None:
    """Reads as a script would, and joins again when an answer asks for it."""
    while not done():
        answer = await member.read(wait_ms=20, commit="true")
        if answer.status == 409:
            if answer.json["code"] == "UNKNOWN_MEMBER":
                member.member_id = ""
            await member.commit()
            assert (await member.join()).status == 201


@pytest.mark.parametrize("first", ["http", "sdk"])
@pytest.mark.parametrize("assignors", [("cooperative-sticky",), ("range",), ("sticky", "roundrobin")])
def test_members_over_http_share_with_members_of_the_sdk(tmp_path: Path, first: str, assignors: tuple[str, ...]) -> None:
    """With either as the leader. Cooperative members keep what does not move, and give up the rest in a second rebalance."""

    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 30)
        script, reader = HttpMember(client, "g"), Reader("orders")
        settings = MemberSettings(session_timeout_ms=10_000, heartbeat_interval_ms=20, assignors=assignors)
        other = GroupMember(broker.groups, reader, settings, group="g")
        if first == "http":
            await script.join()
            assert len(script.assignment) == 3
        async with asyncio.TaskGroup() as tasks:
            living = tasks.create_task(other.run())
            if first == "sdk":
                await until(lambda: len(reader.owned) == 3)
                assert (await script.join()).status == 201

            def shared() -> bool:
                mine, its = set(script.assignment), reader.owned
                return bool(mine and its) and mine | its == {*ORDERS} and not mine & its and script.generation == other.generation

            await keep_on(script, shared)
            await script.leave()
            await until(lambda: len(reader.owned) == 3)
            living.cancel()

    serve(tmp_path, scenario)


def test_a_member_over_grpc_that_leads_assigns_to_one_over_http(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        async with grpc.aio.insecure_channel(broker.grpc_address) as channel:
            group = GroupCalls(channel, "g")
            offered = groups_pb2.GroupProtocol(name="range", metadata=encode_subscription(Subscription(("orders",))))
            reported = await group.join(protocols=[offered])
            await group.sync(reported.member_id, reported.generation, {})
            script = HttpMember(client, "g")
            joining = asyncio.create_task(script.join())
            await joined_by(broker, 2)
            reported = await group.join(reported.member_id, protocols=[offered])
            ids = [member.member_id for member in reported.members]
            assert (reported.leader, reported.protocol) == (reported.member_id, "range")
            [its_id] = set(ids) - {reported.member_id}
            by_hand = {reported.member_id: encode_assignment({"orders": [0]}), its_id: encode_assignment({"orders": [2, 1]})}
            synced = await group.sync(reported.member_id, reported.generation, by_hand)
            assert decode_assignment(synced.assignment) == {"orders": [0]}
            answer = await joining
            assert (answer.json["leader"], answer.json["assignor"]) == (False, "range")
            assert script.assignment == [("orders", 1), ("orders", 2)]
            await produce(client, 6)
            await script.read()
            assert {record["partition"] for record in script.records} == {1, 2}

    serve(tmp_path, scenario)


def test_the_partitions_of_a_member_that_is_silent_go_to_the_others(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 9)
        silent = HttpMember(client, "g", session_timeout_ms=400, rebalance_timeout_ms=400)
        other = HttpMember(client, "g", session_timeout_ms=10_000)
        await asyncio.gather(silent.join(), other.join())
        await silent.read()
        await keep_on(other, lambda: len(other.assignment) == 3 and len(other.records) == 9)
        assert {record["value"] for record in other.records} == set(range(9)), "what it had read and not committed, too"
        assert await client.refused(silent.commit()) == (409, "UNKNOWN_MEMBER")
        refused = await silent.read()
        assert refused.json["hint"] == "Join as a new member: POST /v1/groups/g/members without a member_id."

    serve(tmp_path, scenario, groups=TOGETHER)


def test_a_member_that_waits_for_records_keeps_its_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.groups.records.HEARTBEAT_S", 0.05)

    async def scenario(broker: SmallBroker, client: Client) -> None:
        beats = 0
        heartbeat = broker.groups.heartbeat

        async def counted(*of_member: Any) -> None:
            nonlocal beats
            await heartbeat(*of_member)
            beats += 1

        member = HttpMember(client, "g")
        await member.join()
        monkeypatch.setattr(broker.groups, "heartbeat", counted)
        reading = asyncio.create_task(member.read(wait_ms=60_000))
        await until(lambda: beats >= 3 or reading.done())
        assert not reading.done()
        await produce(client, 1)
        assert len((await reading).json["records"]) == 1

    serve(tmp_path, scenario)


def test_a_client_that_hangs_up_while_it_waits_for_the_others_is_no_member(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        member = HttpMember(client, "g")
        await member.join()
        impatient = asyncio.create_task(HttpMember(client, "g").join())
        await joined_by(broker, 2)
        impatient.cancel()
        await joined_by(broker, 1)
        assert (await member.join()).status == 201, "no member holds it up"
        assert len(member.assignment) == 3

    serve(tmp_path, scenario)


def test_a_client_that_hangs_up_while_the_leader_assigns_is_no_member(tmp_path: Path) -> None:
    """It has an id already, which its client did not receive."""

    async def scenario(broker: SmallBroker, client: Client) -> None:
        async with grpc.aio.insecure_channel(broker.grpc_address) as channel:
            group = GroupCalls(channel, "g")
            offered = groups_pb2.GroupProtocol(name="range", metadata=encode_subscription(Subscription(("orders",))))
            reported = await group.join(protocols=[offered])
            await group.sync(reported.member_id, reported.generation, {})
            impatient = asyncio.create_task(HttpMember(client, "g").join())
            await joined_by(broker, 2)
            reported = await group.join(reported.member_id, protocols=[offered])
            assert (reported.leader, len(reported.members)) == (reported.member_id, 2)
            while not (await broker.coordinated_groups.describe("g")).syncing:  # noqa: ASYNC110  # as above
                await asyncio.sleep(0.001)
            impatient.cancel()
            await joined_by(broker, 1)

    serve(tmp_path, scenario)


def test_a_client_that_hangs_up_while_it_waits_for_records_stays_a_member(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        member = HttpMember(client, "g")
        await member.join()
        reading = asyncio.create_task(member.read(wait_ms=60_000))
        await asyncio.sleep(0.05)
        reading.cancel()
        assert (await member.heartbeat()).status == 204

    serve(tmp_path, scenario)


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        one = HttpMember(client, "g", instance_id="pod-1")
        two = HttpMember(client, "g", instance_id="pod-2")
        await asyncio.gather(one.join(), two.join())
        again = HttpMember(client, "g", instance_id="pod-1")
        answer = await again.join()
        assert answer.status == 201
        assert (again.generation, again.assignment) == (one.generation, one.assignment)
        assert again.member_id != one.member_id
        assert (await two.heartbeat()).status == 204, "no other member had to move"
        assert await client.refused(one.read(instance_id="pod-1")) == (409, "INSTANCE_FENCED")
        assert await client.refused(one.heartbeat(instance_id="pod-1")) == (409, "INSTANCE_FENCED")
        assert await client.refused(one.read()) == (409, "UNKNOWN_MEMBER")

    serve(tmp_path, scenario, groups=TOGETHER)


def test_new_partitions_are_shared_where_a_member_over_http_leads(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        member = HttpMember(client, "g")
        await member.join()
        assert (await member.read()).status == 200
        await broker.alter_topic("orders", partition_count=5)
        assert await client.refused(member.read()) == (409, "REBALANCE_IN_PROGRESS")
        await member.join()
        assert len(member.assignment) == 5
        assert (await member.read()).status == 200

    serve(tmp_path, scenario)


def test_a_recreated_topic_is_read_from_its_beginning(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 9)
        member = HttpMember(client, "g")
        await member.join()
        await member.read(commit="true")
        await member.read(commit="true")
        await broker.delete_topic("orders")
        gone = await member.read()
        assert (gone.status, gone.json["code"]) == (404, "UNKNOWN_TOPIC")
        await broker.create_topic("orders", 3)
        await produce(client, 3, first=100)
        found = await member.read()
        assert sorted(record["value"] for record in found.json["records"]) == [100, 101, 102]
        await member.commit()
        assert await committed(client) == dict.fromkeys(ORDERS, 1)

    serve(tmp_path, scenario)


def test_more_members_than_partitions_wait_with_nothing(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        members = [HttpMember(client, "g", topics=["single"]) for _ in range(2)]
        await asyncio.gather(*(member.join() for member in members))
        [idle] = [member for member in members if not member.assignment]
        answer = await idle.read(wait_ms=10)
        assert (answer.status, answer.json["records"]) == (200, [])
        assert (await broker.coordinated_groups.describe("g")).phase is GroupPhase.STABLE

    serve(tmp_path, scenario, groups=TOGETHER)


def test_a_partition_without_a_leader_does_not_delay_others(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 9)
        topic = await broker.topics.get("orders")
        lost = partition_of(topic, 1)
        member = HttpMember(client, "g")
        await member.join()
        broker.log.stop_leading(lost)
        answer = (await member.read()).json
        assert {record["partition"] for record in answer["records"]} == {0, 2}
        [error] = answer["errors"]
        assert (error["topic"], error["partition"], error["error"]["code"]) == ("orders", 1, "NO_LEADER")
        assert error["error"]["retryable"]
        reading = asyncio.create_task(member.read(wait_ms=60_000))
        await client.produce("/v1/topics/orders/records?partition=2", [{"value": "later"}])
        assert [record["value"] for record in (await reading).json["records"]] == ["later"]
        reading = asyncio.create_task(member.read(wait_ms=60_000))
        await asyncio.sleep(0.05)
        broker.log.lead(empty_partition(lost, broker.segments), LeaderEpoch(8))
        await client.produce("/v1/topics/orders/records?partition=1", [{"value": "led again"}])
        assert [record["value"] for record in (await reading).json["records"]] == ["led again"]

    serve(tmp_path, scenario)


def test_where_no_partition_is_led_a_read_may_be_tried_again(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        topic = await broker.topics.get("orders")
        member = HttpMember(client, "g")
        await member.join()
        for number in range(3):
            broker.log.stop_leading(partition_of(topic, number))
        answer = await member.read(wait_ms=50)
        assert (answer.status, answer.json["code"], answer.headers["retry-after"]) == (503, "NO_LEADER", "1")
        assert "orders" in answer.json["detail"]

    serve(tmp_path, scenario)


def test_a_broker_that_stops_answers_those_that_wait(tmp_path: Path) -> None:
    """Reads with what there is, joins with the word to ask another broker."""

    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 3)
        member = HttpMember(client, "g")
        await member.join()
        await member.read()
        other = HttpMember(client, "h")
        await other.join()
        reading = asyncio.create_task(member.read(wait_ms=60_000))
        joining = asyncio.create_task(HttpMember(client, "h").join())
        await joined_by(broker, 2, "h")
        await until(lambda: len(broker.http._state.tasks) == 2)
        await broker.http.stop(60)
        answer = await reading
        assert (answer.status, answer.json["records"]) == (200, [])
        assert await client.refused(joining) == (503, "STOPPING")

    serve(tmp_path, scenario)


def test_an_error_after_a_member_got_its_id_contains_the_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        async def lost(*_: object) -> NoReturn:
            raise NotCoordinator("no answer")

        monkeypatch.setattr("gateway.concurrency.coordinator_retry.COORDINATOR_WAIT_S", 0.0)
        with monkeypatch.context() as patched:
            patched.setattr(broker.groups, "sync", lost)
            member = HttpMember(client, "g")
            answer = await member.join()
        assert (answer.status, answer.json["code"]) == (503, "NOT_COORDINATOR")
        assert answer.json["hint"].startswith("Retry with back-off, at any broker")
        member.member_id = answer.json["member_id"]
        assert (await member.join()).status == 201
        assert len((await broker.coordinated_groups.describe("g")).members) == 1

    serve(tmp_path, scenario)


def test_a_member_that_its_leader_can_not_assign_to_is_none(tmp_path: Path) -> None:
    """Its assignment would be too large for the broker's settings; its client did not receive its id, so it does not stay."""

    async def scenario(broker: SmallBroker, client: Client) -> None:
        await broker.create_topic("wide", 5_000)
        assert await client.refused(HttpMember(client, "g", topics=["wide"]).join()) == (413, "TOO_LARGE")
        while (await broker.coordinated_groups.describe("g")).members:  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.001)

    serve(tmp_path, scenario, groups=QUICK_AND_SMALL)


def test_records_that_came_while_a_member_waited_are_not_read_in_a_generation_that_has_passed(tmp_path: Path) -> None:
    """Its partitions may be another's before the next heartbeat is due."""

    async def scenario(broker: SmallBroker, client: Client) -> None:
        member = HttpMember(client, "g")
        await member.join()
        reading = asyncio.create_task(member.read(wait_ms=60_000))
        await asyncio.sleep(2 * WAITED_S)
        await member.join()
        await produce(client, 3)
        assert await client.refused(reading) == (409, "STALE_GENERATION")
        assert len((await member.read()).json["records"]) == 3

    serve(tmp_path, scenario)
