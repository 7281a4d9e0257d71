"""Topics are found on the bucket by their names and records, whatever else of them lies there; and written once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from metadata.errors import OutcomeUnknown, Unavailable
from metadata.model import Offset, Partition, Revision, TopicId, TopicPartition
from segments.bucket.layout import (
    TOPICS,
    TopicIncarnation,
    deleted_topic_key,
    history_file_key,
    history_file_name,
    manifest_key,
    topic_mirror_key,
    topic_prefix,
)
from segments.bucket.topic_catalog import ATTEMPTS_MAX, incarnations, mark_deleted, names_of, read_records, write_registration
from segments.object_store.interface import Buffer, ListPage
from segments.object_store.memory import MemoryObjectStore

ONE, TWO, THREE = (TopicIncarnation(name, TopicId(letter * 32)) for name, letter in (("a", "1"), ("b", "2"), ("b", "3")))


class Counting(MemoryObjectStore):
    """Counts its listings, and may lose answers of creates."""

    def __init__(self) -> None:
        super().__init__()
        self.lists = self.creates = self.lost = 0

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        self.lists += 1
        return await super().list(prefix, start_after=start_after, limit=limit)

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        self.creates += 1
        if self.lost:
            self.lost -= 1
            raise OutcomeUnknown("no answer")
        await super().create(key, body, crc32c=crc32c)


async def with_history(store: MemoryObjectStore, topic: TopicIncarnation, count: int = 1_500) -> None:
    partition = TopicPartition(topic.topic_id, Partition(0))
    for number in range(1, count):
        await store.create(manifest_key(topic.name, partition, number), [b""])
        name = history_file_name(Offset(number), Offset(number), 1, f"{number:016x}")
        await store.create(history_file_key(topic.name, partition, name), [b""])


def test_topics_are_found_with_a_request_for_each_whatever_they_hold() -> None:
    async def test() -> None:
        store = Counting()
        for topic in (ONE, TWO, THREE):
            await with_history(store, topic)
        await store.create(f"{TOPICS}b/notes.txt", [b""])
        assert [topic async for topic in incarnations(store)] == [ONE, TWO, THREE]
        assert store.lists == 5, "one for each, one for what is not Tidelog's, one for the end"
        assert [topic async for topic in incarnations(store, f"{TOPICS}a/")] == [ONE]

    asyncio.run(test())


def test_names_are_looked_for_until_all_are_found() -> None:
    async def test() -> None:
        store = Counting()
        for topic in (ONE, TWO, THREE):
            await write_registration(store, topic, Revision(1), b"{}")
        assert await names_of(store, set()) == {}
        assert store.lists == 0
        assert await names_of(store, {ONE.topic_id, TWO.topic_id}) == {ONE.topic_id: "a", TWO.topic_id: "b"}
        assert store.lists == 2
        assert await names_of(store, {THREE.topic_id, TopicId("f" * 32)}) == {THREE.topic_id: "b"}

    asyncio.run(test())


def test_the_records_of_a_topic_are_read_without_its_manifests() -> None:
    async def test() -> None:
        store = Counting()
        await with_history(store, TWO)
        for revision in (7, 9):
            await write_registration(store, TWO, Revision(revision), b"{}")
        await mark_deleted(store, TWO, Revision(12), now_ms=5)
        await store.create(f"{topic_prefix(*TWO)}_log/deleted-by-hand", [b""])
        records = await read_records(store, TWO)
        assert (records.registered, records.deleted, records.compacted) == ([7, 9], [12], set())
        assert store.lists == 1
        assert (await read_records(store, THREE)).registered == []

    asyncio.run(test())


def test_a_record_whose_answer_is_lost_is_written_again_and_given_up_in_the_end() -> None:
    async def test() -> None:
        store = Counting()
        store.lost = ATTEMPTS_MAX - 1
        await write_registration(store, ONE, Revision(1), b"{}")
        store.lost = ATTEMPTS_MAX
        with pytest.raises(Unavailable, match="could not be written"):
            await mark_deleted(store, ONE, Revision(2), now_ms=5)

    asyncio.run(test())


def test_an_existing_registration_or_marker_is_logged_only_if_its_content_differs(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        store = MemoryObjectStore()
        await write_registration(store, ONE, Revision(1), b"{}")
        await write_registration(store, ONE, Revision(1), b"{}")
        await mark_deleted(store, ONE, Revision(2), now_ms=5)
        await mark_deleted(store, ONE, Revision(2), now_ms=6)
        assert not caplog.messages, "two controllers may give different times"
        await write_registration(store, ONE, Revision(1), b"[]")
        await store.create(deleted_topic_key(*ONE, Revision(3)), [b"{}"])
        await mark_deleted(store, ONE, Revision(3), now_ms=6)
        assert ["was etcd set back" in message for message in caplog.messages] == [True, True]
        assert await store.get(topic_mirror_key(*ONE, Revision(1))) == b"{}"

    with caplog.at_level(logging.WARNING):
        asyncio.run(test())
