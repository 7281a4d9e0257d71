"""The groups that read a topic: who counts as a reader, the lag, rights, and pages that cost no more with 5,000 groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from gateway.groups.admin import topic_readers
from gateway.groups.admin.topic_readers import OFFSETS_PAGE, SCANNED_MAX
from metadata.groups.model import Group
from metadata.groups.offsets import CommittedOffset, encode_offset
from metadata.groups.record import encode_group
from metadata.model import Partition, SessionId, TopicPartition
from metadata.store.interface import MetadataStore, Operation, Put
from metadata.store.keys import KeyLayout
from tests.gateway.http.groups.test_routes import produce
from tests.kit.gateway.access.guarded_broker import Guarded, bearer
from tests.kit.gateway.access.guarded_broker import serve as serve_guarded
from tests.kit.gateway.http_client import Client, serve
from tests.kit.gateway.http_members import HttpMember
from tests.kit.gateway.small_broker import SmallBroker

pytestmark = pytest.mark.slow

LAYOUT = KeyLayout()
PATH = "/v1/topics/orders/groups"


async def store_groups(store: MetadataStore, names: list[str], offsets: dict[TopicPartition, int]) -> None:
    """Stores groups without members that have committed these offsets."""
    puts: list[Operation] = []
    for name in names:
        puts.append(Put(LAYOUT.group(name), encode_group(Group(), SessionId(1))))
        puts += [
            Put(LAYOUT.offset(name, at), encode_offset(CommittedOffset(offset=offset, committed_at_ms=0)))
            for at, offset in offsets.items()
        ]
    for start in range(0, len(puts), 100):
        await store.transact((), puts[start : start + 100])


async def pages(client: Client, **query: Any) -> list[dict[str, Any]]:
    found, token = list[dict[str, Any]](), ""
    while not found or token:
        asked = "&".join(f"{name}={value}" for name, value in {**query, "page_token": token}.items())
        found.append((await client.get(f"{PATH}?{asked}")).json)
        token = found[-1]["next_page_token"]
    return found


def test_a_group_reads_a_topic_by_its_members_or_by_what_it_has_committed(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 9)
        member = HttpMember(client, "with members", topics=["orders"])
        await member.join()
        await member.read(max_records=3)
        await member.commit()
        commit = {"offsets": [{"topic": "orders", "partition": 1, "offset": 1}]}
        assert (await client.ask("POST", "/v1/groups/by%20hand/offsets", json=commit)).status == 200
        other = {"offsets": [{"topic": "single", "partition": 0, "offset": 0}]}
        assert (await client.ask("POST", "/v1/groups/elsewhere/offsets", json=other)).status == 200
        found = (await client.get(PATH)).json
        assert (found["scanned"], found["next_page_token"]) == (3, "")
        assert found["groups"] == [
            {"group": "by hand", "state": "Empty", "members": 0, "partitions": 1, "lag_records": 2},
            {"group": "with members", "state": "Stable", "members": 1, "partitions": 3, "lag_records": 6},
        ]
        described = (await client.get(f"/v1/groups/{quote('with members')}")).json
        assert described["lag_records"] == 6, "the lag of the group's own page"
        assert await client.refused(client.get("/v1/topics/none/groups")) == (404, "UNKNOWN_TOPIC")

    serve(tmp_path, scenario)


def test_pages_of_many_groups_find_each_reader_once_and_cost_no_more_than_one_page_looks_at(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        orders, single = broker.topic_cache.get("orders"), broker.topic_cache.get("single")
        names = [f"g{number:04}" for number in range(1_200)]
        of_orders = names[::7]
        await store_groups(broker.metadata, of_orders, {TopicPartition(orders.id, Partition(2)): 0})
        others = [name for name in names if name not in of_orders]
        await store_groups(broker.metadata, others, {TopicPartition(single.id, Partition(0)): 0})
        found = await pages(client)
        assert [group["group"] for page in found for group in page["groups"]] == of_orders
        assert all(page["scanned"] <= SCANNED_MAX for page in found)
        assert len(found) == 3
        by_ten = await pages(client, page_size=10)
        assert [group["group"] for page in by_ten for group in page["groups"]] == of_orders
        assert max(len(page["groups"]) for page in by_ten) == 10

    serve(tmp_path, scenario)


def test_a_page_ends_once_it_has_read_enough_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        monkeypatch.setattr(topic_readers, "OFFSETS_MAX", 60)
        orders = broker.topic_cache.get("orders")
        names = [f"g{number:03}" for number in range(100)]
        await store_groups(broker.metadata, names, {TopicPartition(orders.id, Partition(number)): 0 for number in range(3)})
        found = await pages(client)
        assert [len(page["groups"]) for page in found] == [25, 25, 25, 25]

    serve(tmp_path, scenario)


def test_a_damaged_offset_and_a_damaged_record_hide_no_group(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        at = TopicPartition(broker.topic_cache.get("orders").id, Partition(0))
        await store_groups(broker.metadata, ["a", "b"], {at: 0})
        await broker.metadata.transact((), [Put(LAYOUT.offset("a", at), b"?"), Put(LAYOUT.group("b"), b"?")])
        found = (await client.get(PATH)).json["groups"]
        assert [(group["group"], group["state"], group["lag_records"]) for group in found] == [
            ("a", "Empty", None),
            ("b", "Damaged", 0),
        ]

    serve(tmp_path, scenario)


def test_offsets_of_many_partitions_are_read_by_pages(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        wide = await broker.create_topic("wide", OFFSETS_PAGE + 50)
        offsets = {TopicPartition(wide.id, Partition(number)): 0 for number in range(wide.partition_count)}
        await store_groups(broker.metadata, ["g"], offsets)
        [group] = (await client.get("/v1/topics/wide/groups")).json["groups"]
        assert (group["partitions"], group["lag_records"]) == (wide.partition_count, 0)

    serve(tmp_path, scenario)


def test_only_groups_that_the_caller_may_describe_are_listed(tmp_path: Path) -> None:
    async def scenario(broker: Guarded) -> None:
        await broker.as_admin("POST", "/v1/topics", json={"name": "orders", "partition_count": 1})
        commit = {"offsets": [{"topic": "orders", "partition": 0, "offset": 0}]}
        for group in ("mine", "other"):
            await broker.as_admin("POST", f"/v1/groups/{group}/offsets", json=commit)
        await broker.allow("ann", "describe", "topic", "orders")
        await broker.allow("ann", "describe", "group", "mine")
        answer = await broker.http.ask("GET", PATH, headers=bearer(await broker.key("ann")))
        assert [group["group"] for group in answer.json["groups"]] == ["mine"]
        assert (await broker.http.ask("GET", PATH, headers=bearer(await broker.key("bob")))).status == 403

    serve_guarded(tmp_path, scenario)
