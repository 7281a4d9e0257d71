"""KIP-848 over a socket: heartbeats, fencing, offsets by epoch, descriptions, and librdkafka with group.protocol=consumer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import confluent_kafka
import pytest
import uvloop

from gateway.access.settings import AccessSettings
from gateway.broker.broker import Broker
from metadata.access.acl import Acl
from tests.gateway.kafka.test_group_admin import coordinator_and_other, joined
from tests.kit.gateway.access.guarded_broker import ADMIN_KEY
from tests.kit.gateway.broker_cluster import Cluster, broker_cluster
from tests.kit.gateway.kafka_caller import KafkaCaller, kafka_caller, kafka_caller_as
from tests.kit.gateway.small_broker import PATIENCE_S

pytestmark = pytest.mark.slow

LISTENERS = "direct=127.0.0.1:0,forward=127.0.0.1:0/forward"
JOINING, LEAVING, LEAVING_FOR_NOW = 0, -1, -2


def run(
    tmp_path: Path,
    scenario: Callable[[Cluster], Awaitable[None]],
    *,
    count: int = 1,
    access: AccessSettings | None = None,
) -> None:
    async def whole() -> None:
        async with asyncio.timeout(PATIENCE_S), broker_cluster(tmp_path, count, kafka=LISTENERS, access=access) as cluster:
            await scenario(cluster)

    uvloop.run(whole())


def beat(group: str, member_id: str, epoch: int, **more: Any) -> dict[str, Any]:
    return {"group_id": group, "member_id": member_id, "member_epoch": epoch, **more}


def joining(group: str, member_id: str, *topics: str, **more: Any) -> dict[str, Any]:
    terms = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": list(topics), "topic_partitions": []}
    return beat(group, member_id, JOINING, **{**terms, **more})


async def ask(client: KafkaCaller, version: int = 1, **fields: Any) -> Any:
    return await client.ask("ConsumerGroupHeartbeat", version, **fields)


def partitions(answer: Any) -> dict[bytes, list[int]] | None:
    if answer.assignment is None:
        return None
    return {each.topic_id: list(each.partitions) for each in answer.assignment.topic_partitions}


def test_members_join_share_and_leave_by_heartbeats_alone(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        topic_id = bytes.fromhex((await broker.create_topic("orders", 4)).id)
        async with kafka_caller(broker) as client:
            first = await ask(client, **joining("billing", "a", "orders"))
            assert (first.error_code, first.member_id, first.member_epoch, first.heartbeat_interval_ms) == (0, "a", 1, 5_000)
            assert partitions(first) == {topic_id: [0, 1, 2, 3]}
            second = await ask(client, 0, **joining("billing", "", "orders"))
            assert (second.error_code, second.member_epoch, partitions(second)) == (0, 2, {})
            assert second.member_id
            kept = await ask(client, **beat("billing", "a", 1))
            assert kept.assignment is not None
            owned = [{"topic_id": topic_id, "partitions": list(partitions(kept)[topic_id])}]  # type: ignore[index]
            assert (await ask(client, **beat("billing", "a", 1, topic_partitions=owned))).member_epoch == 2
            given = partitions(await ask(client, **beat("billing", second.member_id, 2)))
            assert given is not None
            assert sorted([*given[topic_id], *owned[0]["partitions"]]) == [0, 1, 2, 3]
            assert (await ask(client, **beat("billing", "a", LEAVING))).member_epoch == LEAVING
            assert partitions(await ask(client, **beat("billing", second.member_id, 2))) == {topic_id: [0, 1, 2, 3]}

    run(tmp_path, scenario)


def test_a_wrong_heartbeat_is_refused_with_kafkas_code(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        await broker.create_topic("orders", 1)
        async with kafka_caller(broker) as client:

            async def code(version: int = 1, **fields: Any) -> int:
                answer = await ask(client, version, **fields)
                assert answer.error_message or not answer.error_code
                found: int = answer.error_code
                return found

            assert await code(**joining("billing", "a", "orders", instance_id="one")) == 0
            assert await code(**joining("billing", "", "orders")) == 42
            assert await code(**beat("billing", "a", JOINING)) == 42
            assert (
                await code(**joining("billing", "b", "orders", topic_partitions=[{"topic_id": bytes(16), "partitions": [0]}])) == 42
            )
            assert await code(**joining("billing", "b", "orders", instance_id="")) == 42
            assert await code(**beat("billing", "a", -3)) == 42
            assert await code(**joining("", "b", "orders")) == 24
            assert await code(**beat("billing", "b", 1)) == 25
            assert await code(**beat("billing", "a", 7, instance_id="one")) == 110
            assert await code(**joining("billing", "b", "orders", instance_id="one")) == 111
            assert await code(**beat("billing", "b", 1, instance_id="one")) == 82
            assert await code(**joining("billing", "b", "orders", server_assignor="sticky")) == 112
            assert await code(**joining("billing", "b", "orders", subscribed_topic_regex="(")) == 128
            assert await code(**beat("billing", "a", 1, instance_id="one")) == 0, "nothing of that changed the group"
            await joined(client, "classic")
            assert await code(**joining("classic", "a", "orders")) == 69
            assert (await client.ask("JoinGroup", 5, **classic("billing"))).error_code == 23
            assert (await client.ask("Heartbeat", 3, group_id="billing", member_id="a", generation_id=1)).error_code == 25
            assert (await client.ask("SyncGroup", 3, group_id="billing", member_id="a", generation_id=1)).error_code == 25

    run(tmp_path, scenario)


def classic(group: str) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }


def test_offsets_are_committed_and_fetched_in_the_members_epoch(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        await broker.create_topic("orders", 1)
        async with kafka_caller(broker) as client:
            await ask(client, **joining("billing", "a", "orders"))

            async def commit(member_id: str, epoch: int) -> int:
                offsets = [{"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 5}]}]
                answer = await client.ask(
                    "OffsetCommit", 9, group_id="billing", member_id=member_id, generation_id_or_member_epoch=epoch, topics=offsets
                )
                found: int = answer.topics[0].partitions[0].error_code
                return found

            async def fetch(member_id: str | None, epoch: int) -> Any:
                groups = [{"group_id": "billing", "member_id": member_id, "member_epoch": epoch, "topics": None}]
                [answer] = (await client.ask("OffsetFetch", 9, groups=groups)).groups
                return answer

            assert [
                await commit("a", 1),
                await commit("a", 2),
                await commit("a", 0),
                await commit("b", 1),
                await commit("", -1),
            ] == [
                0,
                113,
                113,
                25,
                25,
            ]
            assert [(await fetch(*who)).error_code for who in (("a", 1), ("a", 9), ("b", 1), (None, -1))] == [0, 113, 25, 0]
            assert (await fetch("a", 1)).topics[0].partitions[0].committed_offset == 5
            await ask(client, **beat("billing", "a", LEAVING))
            assert await commit("", -1) == 0, "the group has no members"

    run(tmp_path, scenario)


def test_groups_of_both_types_are_listed_and_described_as_what_they_are(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        topic_id = bytes.fromhex((await broker.create_topic("orders", 2)).id)
        async with kafka_caller(broker, client_id="app") as client:
            await joined(client, "classic")
            await ask(client, **joining("billing", "a", "orders", rack_id="zone", subscribed_topic_regex="or.*"))
            await ask(client, **joining("billing", "b", "orders"))

            async def listed(**filters: Any) -> dict[str, tuple[str, str]]:
                answer = await client.ask("ListGroups", 5, **filters)
                return {each.group_id: (each.group_state, each.group_type) for each in answer.groups}

            assert await listed(types_filter=["Consumer"]) == {"billing": ("Reconciling", "consumer")}
            assert (await listed())["classic"][1] == "classic"
            assert await listed(states_filter=["reconciling"]) == {"billing": ("Reconciling", "consumer")}
            [group] = (await client.ask("ConsumerGroupDescribe", 1, group_ids=["billing"])).groups
            assert (group.error_code, group.group_state, group.group_epoch, group.assignor_name) == (0, "Reconciling", 2, "uniform")
            a, b = sorted(group.members, key=lambda each: each.member_id)
            assert (a.member_id, a.rack_id, a.member_epoch, a.client_id, a.member_type) == ("a", "zone", 1, "app", 1)
            assert (list(a.subscribed_topic_names), a.subscribed_topic_regex) == (["orders"], "or.*")
            [owned] = a.assignment.topic_partitions
            assert (owned.topic_id, owned.topic_name, list(owned.partitions)) == (topic_id, "orders", [0, 1])
            assert [len(each.target_assignment.topic_partitions[0].partitions) for each in (a, b)] == [1, 1]
            answer = await client.ask("ConsumerGroupDescribe", 0, group_ids=["classic", "none", ""])
            assert [each.error_code for each in answer.groups] == [69, 69, 24]
            [described] = (await client.ask("DescribeGroups", 6, groups=["billing"])).groups
            assert (described.error_code, described.group_state) == (69, "Dead")

    run(tmp_path, scenario)


def test_another_broker_is_not_the_coordinator_and_a_forward_listener_asks_it(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        topic_id = bytes.fromhex((await cluster.brokers[0].create_topic("orders", 2)).id)
        _, other = coordinator_and_other(cluster, "billing")
        async with kafka_caller(other) as direct, kafka_caller(other, listener=1) as forward:
            assert (await ask(direct, **joining("billing", "a", "orders"))).error_code == 16
            assert (await direct.ask("ConsumerGroupDescribe", 0, group_ids=["billing"])).groups[0].error_code == 16
            answer = await ask(forward, **joining("billing", "a", "orders"))
            while not partitions(answer):  # the coordinator may hear of the topic later
                answer = await ask(forward, **beat("billing", "a", answer.member_epoch))
            assert partitions(answer) == {topic_id: [0, 1]}
            assert (await ask(forward, **beat("billing", "a", 99))).error_code == 110
            [group] = (await forward.ask("ConsumerGroupDescribe", 0, group_ids=["billing"])).groups
            assert [each.member_id for each in group.members] == ["a"]

    run(tmp_path, scenario, count=2)


def test_a_pattern_leaves_out_what_its_member_may_not_read_also_through_another_broker(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        first, _ = cluster.brokers
        there, other = coordinator_and_other(cluster, "billing")
        ids = {name: bytes.fromhex((await first.create_topic(name, 2)).id) for name in ("orders", "salaries")}
        await until(lambda: all(len(list(broker.topic_cache.topics())) == 2 for broker in cluster.brokers))

        async def allow(resource: Literal["topic", "group"], name: str) -> None:
            acl = Acl(principal="billing", operation="read", resource=resource, name=name)
            await first.access.add_acl(acl, validate_only=False)
            caches = [broker.guard.cache for broker in cluster.brokers if broker.guard is not None]
            await until(lambda: all(each.rights("billing").allow("read", resource, name) for each in caches))

        await allow("group", "billing")
        await allow("topic", "orders")
        made = await first.access.create_key("billing", expires_at_ms=0, scopes=(), description="", validate_only=False)
        key = made.text.reveal()
        for broker in cluster.brokers:
            assert broker.guard is not None
            assert await broker.guard.cache.wait_for("key", made.revision, PATIENCE_S)
        pattern = {"subscribed_topic_names": None, "subscribed_topic_regex": ".*"}
        async with (
            kafka_caller_as(there, key) as direct,
            kafka_caller_as(other, key, listener=1) as forward,
            kafka_caller_as(other, ADMIN_KEY, listener=1) as admin,
        ):
            assert (await ask(direct, **joining("billing", "a", "salaries"))).error_code == 29
            for client, member in ((direct, "a"), (forward, "b")):
                answer = await ask(client, **joining("billing", member, **pattern))
                assert partitions(answer) == {ids["orders"]: [0, 1]}
                if member == "a":
                    assert (await ask(client, **beat("billing", "a", LEAVING))).error_code == 0
            await allow("topic", "salaries")
            answer = await ask(forward, **beat("billing", "b", answer.member_epoch))
            assert partitions(answer) == {ids["orders"]: [0, 1], ids["salaries"]: [0, 1]}
            assert (await ask(forward, **beat("billing", "b", LEAVING))).error_code == 0
            answer = await ask(admin, **joining("billing", "c", **pattern))
            assert partitions(answer) == {ids["orders"]: [0, 1], ids["salaries"]: [0, 1]}, "its key is no key of the cluster"

    key_file = tmp_path / "admin.key"
    key_file.write_text(ADMIN_KEY)
    run(tmp_path, scenario, count=2, access=AccessSettings(authentication=True, admin_key_file=key_file))


class Reader:
    """A consumer of librdkafka, in a thread of its own."""

    def __init__(self, broker: Broker, **settings: Any) -> None:
        [listener, _] = broker.kafka_listeners
        defaults = {"bootstrap.servers": f"{listener.host}:{listener.port}", "group.id": "billing", "group.protocol": "consumer"}
        self.consumer = confluent_kafka.Consumer({**defaults, "auto.offset.reset": "earliest", "log_level": 0, **settings})
        # How many partitions it owns.
        self.owned = 0
        self.values: list[bytes] = []
        self.errors: list[str] = []
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def start(self, *topics: str) -> Reader:
        self.consumer.subscribe(list(topics))
        self._thread.start()
        return self

    def _read(self) -> None:
        while not self._stops.is_set():
            message = self.consumer.poll(0.1)
            self.owned = len(self.consumer.assignment())
            if message is None:
                continue
            if message.error() is not None:
                self.errors.append(str(message.error()))
            elif (value := message.value()) is not None:
                self.values.append(value)
        self.consumer.close()

    async def stop(self) -> None:
        self._stops.set()
        await asyncio.to_thread(self._thread.join)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def test_librdkafka_consumers_share_a_topic_and_take_over_from_each_other(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        [broker] = cluster.brokers
        await broker.create_topic("orders", 4)
        [listener, _] = broker.kafka_listeners
        producer = confluent_kafka.Producer({"bootstrap.servers": f"{listener.host}:{listener.port}", "log_level": 0})

        async def produce(turn: int) -> set[bytes]:
            values = {b"%d-%d" % (turn, number) for number in range(20)}
            for index, value in enumerate(sorted(values)):
                producer.produce("orders", value, partition=index % 4)
            assert await asyncio.to_thread(producer.flush, 30) == 0
            return values

        readers = [Reader(broker).start("orders")]
        try:
            first = readers[0]
            wanted = await produce(1)
            await until(lambda: set(first.values) == wanted)
            readers.append(second := Reader(broker).start("^ord.*"))
            await until(lambda: first.owned == second.owned == 2)
            more = await produce(2)
            await until(lambda: set(first.values) | set(second.values) == wanted | more)
            assert second.values
            await first.stop()
            await until(lambda: second.owned == 4)
            last = await produce(3)
            await until(lambda: set(second.values) >= last)
        finally:
            for reader in readers:
                await reader.stop()
        assert not first.errors
        assert not second.errors
        assert len(first.values) + len(second.values) == 60, "each record once"

    run(tmp_path, scenario)
