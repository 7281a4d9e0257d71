"""What a bucket shows of itself: sound ones pass, and each broken rule is found by its place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest

from metadata.model import LeaderEpoch, Offset, Partition, SegmentSeq, SessionId, TopicId, TopicPartition
from segments.bucket_layout import CLUSTER, claim_key, segment_key, trimmed_key
from segments.cluster_record import sign_bucket
from segments.compression import Codec
from segments.memory_store import MemoryStore
from segments.record_batch import parse_header, stamp
from segments.record_columns import encode_records
from segments.segment_file import StampedBatch, encode_segment
from segments.session import ClaimRecord
from tests.segments.batches import seal_of
from tidelog.bucket_audit import Audit, audit_bucket

ORDERS, BILLS = TopicId("a" * 32), TopicId("b" * 32)
WRITER = bytes(range(16))


def stamped(base_offset: int, records: int, epoch: int) -> StampedBatch:
    batch = encode_records([(None, b"x" * 10, (), 1_000 + n) for n in range(records)], codec=Codec.NONE)
    head = stamp(batch, base_offset=Offset(base_offset), leader_epoch=LeaderEpoch(epoch))
    return StampedBatch(parse_header(batch), Offset(base_offset), head, memoryview(batch)[16:])


class Bucket:
    """A bucket in the making."""

    def __init__(self) -> None:
        self.store = MemoryStore()

    async def sign(self) -> None:
        await sign_bucket(self.store, "cluster", now_ms=0)

    async def claim(self, session: int) -> None:
        record = ClaimRecord(SessionId(session), WRITER.hex(), "broker-1", 0)
        await self.store.create(claim_key(SessionId(session)), [msgspec.json.encode(record)])

    async def segment(
        self, session: int, seq: int, *runs: tuple[TopicId, int, int, Sequence[tuple[int, int]]], writer: bytes = WRITER
    ) -> None:
        """`runs`: topic, partition, leader epoch, and (base offset, records) of each batch."""
        encoded = encode_segment(
            session=SessionId(session),
            seq=SegmentSeq(seq),
            writer=writer,
            committed_to=SegmentSeq(0),
            written_at_ms=0,
            partitions=[
                (
                    TopicPartition(topic, Partition(partition)),
                    LeaderEpoch(epoch),
                    [stamped(base, count, epoch) for base, count in batches],
                )
                for topic, partition, epoch, batches in runs
            ],
        )
        await self.store.create(segment_key(SessionId(session), SegmentSeq(seq)), encoded.body)

    async def seal(self, session: int, seq: int) -> None:
        await self.store.create(segment_key(SessionId(session), SegmentSeq(seq)), [seal_of(session, seq, by=9)])

    async def change(self, session: int, seq: int, change: Callable[[bytearray], None]) -> None:
        key = segment_key(SessionId(session), SegmentSeq(seq))
        body = bytearray(await self.store.get(key))
        change(body)
        await self.store.delete(key)
        await self.store.create(key, [bytes(body)])

    async def two_sessions(self) -> None:
        """Sound: session 1 was sealed, session 2 goes on."""
        await self.sign()
        await self.claim(1)
        await self.segment(1, 0, (ORDERS, 0, 1, [(0, 3), (3, 2)]), (BILLS, 0, 1, [(0, 1)]))
        await self.segment(1, 1, (ORDERS, 0, 1, [(5, 1)]))
        await self.seal(1, 2)
        await self.claim(2)
        await self.segment(2, 0, (ORDERS, 0, 2, [(6, 4)]), (ORDERS, 1, 2, [(0, 2)]))


def audit(prepare: Callable[[Bucket], Awaitable[None]], *, deep: bool = False) -> Audit:
    async def run() -> Audit:
        bucket = Bucket()
        await prepare(bucket)
        return await audit_bucket(bucket.store, deep=deep)

    return asyncio.run(run())


def damage(found: Audit) -> list[str]:
    return [f"{finding.where}: {finding.what}" for finding in found.findings if finding.severity == "damage"]


def test_a_sound_bucket_has_no_findings_and_is_measured() -> None:
    found = audit(Bucket.two_sessions, deep=True)
    assert found.findings == []
    assert found.is_sound
    assert (found.sessions, found.sealed_sessions, found.segments, found.records, found.batches_read) == (2, 1, 3, 13, 6)
    assert found.cluster_id == "cluster"
    assert {topic: (sorted(used.partitions), used.records, used.segments) for topic, used in found.topics.items()} == {
        ORDERS: ([0, 1], 12, 3),
        BILLS: ([0], 1, 1),
    }


def test_an_empty_bucket_is_sound_and_noted() -> None:
    async def nothing(bucket: Bucket) -> None:
        return

    found = audit(nothing)
    assert found.is_sound
    assert "no cluster has used this prefix" in found.findings[0].what


def test_sessions_without_the_record_of_their_cluster_are_damage() -> None:
    async def unsigned(bucket: Bucket) -> None:
        await bucket.two_sessions()
        await bucket.store.delete(CLUSTER)

    assert damage(audit(unsigned)) == ["cluster.json: it is missing, and sessions lie here: it says which cluster they belong to"]


def test_what_came_behind_a_seal_or_a_gap_is_noted_and_not_counted() -> None:
    async def late(bucket: Bucket) -> None:
        await bucket.two_sessions()
        await bucket.segment(1, 4, (ORDERS, 0, 1, [(6, 50)]))
        await bucket.segment(2, 2, (ORDERS, 0, 2, [(10, 50)]))

    found = audit(late, deep=True)
    assert found.is_sound
    assert [finding.what for finding in found.findings] == [
        "1 object behind the seal: not committed, and never visible",
        "1 object behind the gap at 1: not committed, and never visible",
    ]
    assert (found.records, found.invisible_objects) == (13, 2)


def test_a_committed_segment_that_is_gone_is_damage() -> None:
    async def deleted(bucket: Bucket) -> None:
        await bucket.two_sessions()
        await bucket.store.delete(segment_key(SessionId(1), SegmentSeq(0)))

    found = audit(deleted, deep=True)
    key = segment_key(SessionId(1), SegmentSeq(0))
    seal = segment_key(SessionId(1), SegmentSeq(2))
    assert f"{key}: {key} is gone, and was committed: {seal} says so" in damage(found)
    assert (found.segments, found.records) == (2, 7)


def test_offsets_that_are_missing_are_damage() -> None:
    async def gap(bucket: Bucket) -> None:
        await bucket.two_sessions()
        await bucket.segment(2, 1, (ORDERS, 0, 2, [(12, 1)]))

    assert damage(audit(gap)) == [
        f"{ORDERS}/0 in {segment_key(SessionId(2), SegmentSeq(1))}: offsets 10 to 11 are missing before it (leader epoch 2)"
    ]


def test_offsets_that_exist_twice_are_damage() -> None:
    async def twice(bucket: Bucket) -> None:
        await bucket.two_sessions()
        await bucket.claim(3)
        await bucket.segment(3, 0, (ORDERS, 0, 3, [(8, 5)]))

    (what,) = damage(audit(twice))
    assert what.endswith("offsets 8 to 9 exist twice (leader epoch 3)")


def test_a_partition_must_begin_at_zero_unless_history_was_trimmed() -> None:
    async def late_start(bucket: Bucket) -> None:
        await bucket.sign()
        await bucket.claim(1)
        await bucket.segment(1, 0, (ORDERS, 0, 1, [(7, 1)]))

    async def trimmed(bucket: Bucket) -> None:
        await bucket.sign()
        await bucket.claim(1)
        await bucket.store.create(trimmed_key(SessionId(1), SegmentSeq(5)), [b""])
        await bucket.segment(1, 5, (ORDERS, 0, 1, [(7, 1)]))

    assert "offsets 0 to 6 are missing" in damage(audit(late_start))[0]
    assert damage(audit(trimmed)) == []


def test_a_session_without_its_claim_is_damage() -> None:
    async def unclaimed(bucket: Bucket) -> None:
        await bucket.sign()
        await bucket.segment(1, 0, (ORDERS, 0, 1, [(0, 1)]))

    assert "the session has objects and no claim" in damage(audit(unclaimed))[0]


@pytest.mark.parametrize("place", [0, 20, -1, -30])
def test_a_bit_that_flips_anywhere_in_a_segment_is_found(place: int) -> None:
    async def flip(bucket: Bucket) -> None:
        await bucket.two_sessions()

        def change(body: bytearray) -> None:
            body[place] ^= 1

        await bucket.change(1, 1, change)

    assert damage(audit(flip, deep=True))


def test_a_bit_that_flips_in_a_batch_is_found_with_its_byte_range_and_only_by_looking_deep() -> None:
    async def flip(bucket: Bucket) -> None:
        await bucket.two_sessions()

        def change(body: bytearray) -> None:
            body[40 + 65] ^= 1

        await bucket.change(1, 0, change)

    assert damage(audit(flip)) == []
    (what,) = damage(audit(flip, deep=True))
    assert f"{segment_key(SessionId(1), SegmentSeq(0))} [40, " in what
    assert "CRC" in what


def test_a_segment_that_another_process_wrote_is_found() -> None:
    async def zombie(bucket: Bucket) -> None:
        await bucket.sign()
        await bucket.claim(1)
        await bucket.segment(1, 0, (ORDERS, 0, 1, [(0, 1)]), writer=bytes(16))

    assert "another process" in damage(audit(zombie, deep=True))[0]


def test_a_torn_seal_and_a_torn_claim_are_found() -> None:
    async def torn(bucket: Bucket) -> None:
        await bucket.two_sessions()

        def change(body: bytearray) -> None:
            body[45] ^= 1

        await bucket.change(1, 2, change)
        await bucket.store.delete(claim_key(SessionId(2)))
        await bucket.store.create(claim_key(SessionId(2)), [b"{"])

    found = damage(audit(torn))
    assert any("the seal does not match its CRC-32C" in what for what in found)
    assert any("the claim can't be read" in what for what in found)


def test_an_object_that_is_not_ours_is_noted() -> None:
    async def stranger(bucket: Bucket) -> None:
        await bucket.two_sessions()
        await bucket.store.create("wal/readme.txt", [b"hello"])

    (finding,) = audit(stranger).findings
    assert (finding.severity, finding.where) == ("note", "wal/readme.txt")


def test_progress_is_told_up_to_the_end() -> None:
    async def run() -> list[tuple[int, int]]:
        bucket = Bucket()
        await bucket.two_sessions()
        seen: list[tuple[int, int]] = []
        await audit_bucket(bucket.store, deep=True, advance=lambda done, of: seen.append((done, of)))
        return seen

    assert asyncio.run(run())[-1] == (3, 3)
