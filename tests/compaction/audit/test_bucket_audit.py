"""What a bucket shows of itself: sound ones pass, and each broken rule is found by its place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise

import msgspec
import pytest

from compaction.audit.bucket_audit import Audit, audit_bucket
from metadata.model import LeaderEpoch, Offset, Partition, Revision, SegmentSeq, SessionId, TopicId, TopicPartition
from segments.bucket.cluster_record import sign_bucket
from segments.bucket.layout import (
    CLUSTER,
    claim_key,
    deleted_topic_key,
    history_file_key,
    history_file_name,
    manifest_key,
    segment_key,
    trimmed_key,
)
from segments.history.manifest import EpochStart, KeyPass, Manifest, Retired, Superseded, encode_manifest
from segments.object_store.interface import ListPage, ObjectInfo, Tail
from segments.object_store.memory import MemoryObjectStore
from segments.records.batch import parse_header, stamp
from segments.records.columns import encode_records
from segments.records.compression import Codec
from segments.wal.footer_index import IndexBlock
from segments.wal.footer_reader import read_footer_bytes, write_index
from segments.wal.segment_file import StampedBatch, encode_segment
from segments.wal.session import ClaimRecord
from tests.kit.compaction.kept import columns_of, record
from tests.kit.segments.batches import seal_of
from tests.kit.segments.history_files import write_history

ORDERS, BILLS = TopicId("a" * 32), TopicId("b" * 32)
WRITER = bytes(range(16))


def stamped(base_offset: int, records: int, epoch: int) -> StampedBatch:
    batch = encode_records([(None, b"x" * 10, (), 1_000 + n) for n in range(records)], codec=Codec.NONE)
    head = stamp(batch, base_offset=Offset(base_offset), leader_epoch=LeaderEpoch(epoch))
    return StampedBatch(parse_header(batch), Offset(base_offset), head, memoryview(batch)[16:])


class Bucket:
    """A bucket in the making."""

    def __init__(self) -> None:
        self.store = MemoryObjectStore()

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

    async def history(self, *bounds: int, topic: TopicId = ORDERS, version: int = 1, **changes: object) -> Manifest:
        """Partition 0: a file between each two bounds, as of this version of the manifest; `changes` are made to it."""
        files = []
        for base, end in pairwise(bounds):
            name = history_file_name(Offset(base), Offset(end - 1), version, f"{base:016x}")
            written = write_history([columns_of([record(n) for n in range(base, end)])], name=name, topic="orders", partition=0)
            await self.store.create(
                history_file_key("orders", TopicPartition(topic, Partition(0)), name), [memoryview(written.body)]
            )
            files.append(written.file)
        manifest = Manifest(topic, Partition(0), version, "w", 0, "compaction", Offset(bounds[0]), Offset(bounds[-1]), tuple(files))
        manifest = msgspec.structs.replace(manifest, **changes)
        await self.store.create(manifest_key("orders", manifest.topic_partition, version), [encode_manifest(manifest)])
        return manifest

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


def test_objects_behind_a_seal_or_a_gap_are_noted_and_not_counted() -> None:
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


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(
    ("left", "reported"), [(None, "is gone, and was committed"), (0, "it has 0 bytes"), (60, "it has 60 bytes")]
)
def test_a_segment_that_is_gone_or_cut_is_damage_though_an_index_has_its_footer(
    left: int | None, reported: str, *, deep: bool
) -> None:
    async def cut(bucket: Bucket) -> None:
        await indexed(bucket)
        key = segment_key(SessionId(1), SegmentSeq(0))
        body = await bucket.store.get(key)
        await bucket.store.delete(key)
        if left is not None:
            await bucket.store.create(key, [body[:left]])

    (what,) = damage(audit(cut, deep=deep))
    assert reported in what
    assert damage(audit(indexed, deep=deep)) == []


def test_a_footer_that_is_damaged_in_its_segment_alone_is_found_by_looking_deep() -> None:
    def cut(body: bytearray) -> None:
        del body[-1]

    async def torn(bucket: Bucket) -> None:
        await indexed(bucket)
        await bucket.change(1, 0, cut)

    assert damage(audit(torn)) == []  # the index has it
    (what,) = damage(audit(torn, deep=True))
    assert what.startswith(segment_key(SessionId(1), SegmentSeq(0)))


async def indexed(bucket: Bucket) -> None:
    """Two sessions, the first with an index of its footers."""
    await bucket.two_sessions()
    session, end = SessionId(1), SegmentSeq(2)
    keys = [segment_key(session, SegmentSeq(seq)) for seq in range(end)]
    footers = [await read_footer_bytes(bucket.store, ObjectInfo(key, len(await bucket.store.get(key)))) for key in keys]
    await write_index(bucket.store, session, IndexBlock(SegmentSeq(0), end, tuple(footers)), timeout_s=60)


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


def test_a_partition_must_begin_at_zero_or_where_its_history_ends() -> None:
    async def late_start(bucket: Bucket) -> None:
        await bucket.sign()
        await bucket.claim(1)
        await bucket.segment(1, 0, (ORDERS, 0, 1, [(7, 1)]))

    async def trimmed(bucket: Bucket) -> None:
        await bucket.sign()
        await bucket.claim(1)
        await bucket.store.create(trimmed_key(SessionId(1), SegmentSeq(5)), [b""])
        await bucket.segment(1, 5, (ORDERS, 0, 1, [(7, 1)]))

    async def compacted(bucket: Bucket) -> None:
        await trimmed(bucket)
        await bucket.history(0, 7)

    assert "offsets 0 to 6 are missing" in damage(audit(late_start))[0]
    assert "offsets 0 to 6 are missing" in damage(audit(trimmed))[0]
    assert damage(audit(compacted, deep=True)) == []


def test_offsets_that_are_missing_below_the_log_start_are_no_damage() -> None:
    """After a restore from an older bucket, a partition begins at its log start. What is missing had been deleted."""

    async def after_restore(bucket: Bucket, *, log_start: int) -> None:
        await bucket.two_sessions()
        await bucket.claim(3)
        await bucket.segment(3, 0, (ORDERS, 0, 3, [(15, 1)]))
        deleted = Manifest(ORDERS, Partition(0), 1, "w", 0, "delete-records", Offset(log_start), Offset(0))
        await bucket.store.create(manifest_key("orders", deleted.topic_partition, 1), [encode_manifest(deleted)])

    async def at_its_log_start(bucket: Bucket) -> None:
        await after_restore(bucket, log_start=15)

    async def above_it(bucket: Bucket) -> None:
        await after_restore(bucket, log_start=14)

    assert damage(audit(at_its_log_start)) == []
    (what,) = damage(audit(above_it))
    assert "offsets 10 to 14 are missing before it" in what


def test_a_session_without_its_claim_is_damage() -> None:
    async def unclaimed(bucket: Bucket) -> None:
        await bucket.sign()
        await bucket.segment(1, 0, (ORDERS, 0, 1, [(0, 1)]))

    assert "the session has objects and no claim" in damage(audit(unclaimed))[0]


@pytest.mark.parametrize("byte_offset", [0, 20, -1, -30])
def test_a_bit_that_flips_anywhere_in_a_segment_is_found(byte_offset: int) -> None:
    async def flip(bucket: Bucket) -> None:
        await bucket.two_sessions()

        def change(body: bytearray) -> None:
            body[byte_offset] ^= 1

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
    async def outsider(bucket: Bucket) -> None:
        await bucket.two_sessions()
        await bucket.store.create("wal/readme.txt", [b"hello"])

    (finding,) = audit(outsider).findings
    assert (finding.severity, finding.where) == ("note", "wal/readme.txt")


def test_progress_is_reported_up_to_the_end() -> None:
    async def run() -> list[tuple[str, int, int]]:
        bucket = Bucket()
        await bucket.two_sessions()
        seen: list[tuple[str, int, int]] = []
        await audit_bucket(bucket.store, deep=True, advance=lambda what, done, of: seen.append((what, done, of)))
        return seen

    assert asyncio.run(run())[-1] == ("segments", 3, 3)


# ── history ──


def orders_key(manifest: Manifest, at: int) -> str:
    return history_file_key("orders", manifest.topic_partition, manifest.files[at].name)


def test_history_is_measured_and_segments_go_on_where_it_ends() -> None:
    async def compacted(bucket: Bucket) -> None:
        await bucket.two_sessions()
        await bucket.history(0, 4, 6, epochs=(EpochStart(LeaderEpoch(1), Offset(0)),))

    found = audit(compacted, deep=True)
    assert found.findings == []
    assert (found.partitions_compacted, found.files_read, found.records) == (1, 2, 13)
    usage = found.topics[ORDERS]
    assert (usage.name, usage.files, usage.file_records, usage.records, usage.manifest_versions) == ("orders", 2, 6, 6, 1)
    assert usage.file_bytes + 1 < usage.bytes
    assert usage.stored_bytes > usage.bytes
    assert 0 < usage.usd_per_month < 0.001
    assert usage.reads == usage.files + usage.row_groups + usage.runs
    assert found.topics[BILLS].name == ""


def test_a_file_that_a_manifest_names_must_be_there_and_of_its_size() -> None:
    async def gone(bucket: Bucket) -> None:
        await bucket.two_sessions()
        manifest = await bucket.history(0, 4, 6)
        await bucket.store.delete(orders_key(manifest, 0))

    async def longer(bucket: Bucket) -> None:
        await bucket.two_sessions()
        manifest = await bucket.history(0, 4, 6)
        key = orders_key(manifest, 0)
        body = await bucket.store.get(key)
        await bucket.store.delete(key)
        await bucket.store.create(key, [body, b"more"])

    async def shorter(bucket: Bucket) -> None:
        await bucket.two_sessions()
        key = orders_key(await bucket.history(0, 4, 6), 1)
        body = await bucket.store.get(key)
        await bucket.store.delete(key)
        await bucket.store.create(key, [body[:9]])  # its footer can't even be asked for

    (what,) = damage(audit(gone))
    assert "it is gone, and was in use" in what
    assert ["it has 9 bytes" in what for what in damage(audit(shorter, deep=True))] == [True]
    assert any(" states " in what or "and 1" in what for what in damage(audit(longer)))


def test_a_bit_that_flips_in_history_is_found_by_looking_deep_and_in_the_footer_always() -> None:
    def flipped(at: Callable[[Manifest], int]) -> Callable[[Bucket], Awaitable[None]]:
        async def prepare(bucket: Bucket) -> None:
            await bucket.two_sessions()
            manifest = await bucket.history(0, 4, 6)
            key = orders_key(manifest, 1)
            body = bytearray(await bucket.store.get(key))
            body[at(manifest)] ^= 1
            await bucket.store.delete(key)
            await bucket.store.create(key, [bytes(body)])

        return prepare

    in_records = flipped(lambda manifest: manifest.files[1].row_groups[0].start + 9)
    assert damage(audit(in_records)) == []
    assert "CRC-32C" in damage(audit(in_records, deep=True))[0]
    in_index = flipped(lambda manifest: manifest.files[1].row_groups[-1].end + 1)
    assert damage(audit(in_index, deep=True))
    in_footer = flipped(lambda manifest: manifest.files[1].footer_start + 9)
    assert "footer" in damage(audit(in_footer))[0]


def test_a_manifest_that_lies_about_the_records_is_found_by_looking_deep() -> None:
    async def lying(bucket: Bucket) -> None:
        await bucket.two_sessions()
        manifest = await bucket.history(0, 6)
        wrong = msgspec.structs.replace(manifest.files[0], checksum=f"{1:016x}")
        later = msgspec.structs.replace(manifest, version=2, files=(wrong,), superseded=(Superseded(1, 0, "w"),))
        await bucket.store.create(manifest_key("orders", manifest.topic_partition, 2), [encode_manifest(later)])

    assert damage(audit(lying)) == []
    assert "checksum" in damage(audit(lying, deep=True))[0]


def test_a_torn_manifest_is_damage_of_its_partition_alone() -> None:
    async def torn(bucket: Bucket) -> None:
        await bucket.two_sessions()
        manifest = await bucket.history(0, 6)
        await bucket.store.create(manifest_key("orders", manifest.topic_partition, 2), [encode_manifest(manifest)[:50]])

    (what,) = damage(audit(torn))
    assert "is no manifest" in what


def test_offsets_that_are_in_no_file_are_damage_until_keys_are_compacted() -> None:
    async def gap(bucket: Bucket) -> None:
        await bucket.two_sessions()
        manifest = await bucket.history(0, 2, 4, 6)
        later = msgspec.structs.replace(
            manifest, version=2, files=(manifest.files[0], manifest.files[2]), superseded=(Superseded(1, 0, "w"),)
        )
        await bucket.store.create(manifest_key("orders", manifest.topic_partition, 2), [encode_manifest(later)])

    async def thinned_out(bucket: Bucket) -> None:
        await bucket.two_sessions()
        manifest = await bucket.history(0, 2, 4, 6)
        later = msgspec.structs.replace(
            manifest,
            version=2,
            files=(manifest.files[0], manifest.files[2]),
            superseded=(Superseded(1, 0, "w"),),
            key_passes=(KeyPass(Offset(6), 0, 0),),
            retired=(Retired(manifest.files[1].name, 0),),
        )
        await bucket.store.create(manifest_key("orders", manifest.topic_partition, 2), [encode_manifest(later)])

    (what,) = damage(audit(gap))
    assert "offsets 2 to 3 are in no file" in what
    found = audit(thinned_out, deep=True)
    assert found.findings == []
    assert found.collectable_objects == 2


def test_a_deep_audit_compares_values_that_never_fall_with_older_versions() -> None:
    async def fallen(bucket: Bucket) -> None:
        await bucket.two_sessions()
        await bucket.history(0, 6)
        await bucket.history(0, 5, version=2, superseded=(Superseded(1, 0, "w"),))

    found = damage(audit(fallen, deep=True))
    assert any("its end of history is 6; in version 2 it is 5" in what for what in found)


def test_a_leader_epoch_that_goes_back_behind_history_is_damage() -> None:
    async def backwards(bucket: Bucket) -> None:
        await bucket.sign()
        await bucket.claim(1)
        await bucket.segment(1, 0, (ORDERS, 0, 3, [(6, 1)]))
        await bucket.history(0, 6, epochs=(EpochStart(LeaderEpoch(4), Offset(0)),))

    (what,) = damage(audit(backwards))
    assert "leader epoch 3 comes after epoch 4" in what


def test_remains_of_crashes_are_noted_and_files_of_manifests_that_are_gone_are_damage() -> None:
    async def littered(bucket: Bucket) -> None:
        await bucket.two_sessions()
        manifest = await bucket.history(0, 6)
        for n in range(7):
            name = history_file_name(Offset(0), Offset(1), 1, f"{n + 50:016x}")
            await bucket.store.create(history_file_key("orders", manifest.topic_partition, name), [b"x" * 10])
        late = history_file_name(Offset(6), Offset(7), 2, f"{1:016x}")
        await bucket.store.create(history_file_key("orders", manifest.topic_partition, late), [b"x"])

    async def odd(bucket: Bucket) -> None:
        await bucket.two_sessions()
        manifest = await bucket.history(0, 6)
        name = history_file_name(Offset(6), Offset(7), 9, f"{1:016x}")
        await bucket.store.create(history_file_key("orders", manifest.topic_partition, name), [b"x"])

    found = audit(littered)
    assert found.is_sound
    assert [finding.where for finding in found.findings][-1] == "2 other objects"
    assert sum("cut short" in finding.what for finding in found.findings) == 6
    assert sum("names yet" in finding.what for finding in found.findings) == 1
    assert (found.collectable_objects, found.collectable_bytes) == (7, 70)
    assert "version 9 of its manifest, and the newest is 1" in damage(audit(odd))[0]


def test_a_topic_that_was_deleted_is_the_collectors_and_not_checked() -> None:
    size_bytes = 0

    async def deleted(bucket: Bucket) -> None:
        nonlocal size_bytes
        await bucket.two_sessions()
        manifest = await bucket.history(0, 2)
        size_bytes = len(await bucket.store.get(manifest_key("orders", manifest.topic_partition, 1)))
        await bucket.store.create(deleted_topic_key("orders", ORDERS, Revision(9)), [b"{}"])
        await bucket.store.delete(orders_key(manifest, 0))
        await bucket.store.create(deleted_topic_key("orders", ORDERS, Revision(5)), [b"{}"])
        await bucket.store.create(
            f"topics/orders/{ORDERS}/partition=0/{history_file_name(Offset(0), Offset(1), 1, '0' * 16)}", [b"xy"]
        )

    found = audit(deleted)
    assert found.findings == []
    assert found.topics[ORDERS].is_deleted
    assert (found.collectable_objects, found.collectable_bytes) == (2, size_bytes + 2), "its manifest and its file, and no marker"


def test_segments_that_are_trimmed_and_not_deleted_yet_are_the_collectors() -> None:
    async def trimmed(bucket: Bucket) -> None:
        await bucket.two_sessions()
        await bucket.store.create(trimmed_key(SessionId(1), SegmentSeq(1)), [b"{}"])
        await bucket.history(0, 5)
        bills = TopicPartition(BILLS, Partition(0))
        empty = Manifest(BILLS, Partition(0), 1, "w", 0, "delete-records", Offset(1), Offset(1))
        await bucket.store.create(manifest_key("bills", bills, 1), [encode_manifest(empty)])

    found = audit(trimmed, deep=True)
    assert found.findings == []
    assert found.collectable_objects == 1
    assert found.topics[BILLS].name == "bills"


def test_a_trim_marker_that_has_arrived_before_the_manifest_is_damage() -> None:
    """A replica copies objects in any order. The marker says that Parquet has the first segment, and it has not."""

    async def replica(bucket: Bucket, *, manifest_to: int = 0) -> None:
        await bucket.sign()
        await bucket.claim(1)
        await bucket.segment(1, 0, (ORDERS, 0, 1, [(0, 3)]))
        await bucket.segment(1, 1, (ORDERS, 0, 1, [(3, 2)]))
        await bucket.seal(1, 2)
        await bucket.store.create(trimmed_key(SessionId(1), SegmentSeq(2)), [b"{}"])
        if manifest_to:
            await bucket.history(0, manifest_to)

    async def with_older_manifest(bucket: Bucket) -> None:
        await replica(bucket, manifest_to=3)

    async def with_manifest(bucket: Bucket) -> None:
        await replica(bucket, manifest_to=5)

    async def of_deleted_topic(bucket: Bucket) -> None:
        await replica(bucket)
        await bucket.store.create(deleted_topic_key("orders", ORDERS, Revision(9)), [b""])

    key = trimmed_key(SessionId(1), SegmentSeq(2))
    (missing,) = damage(audit(replica))
    assert missing.startswith(key)
    assert f"no manifest has offsets 0 to 4 of {ORDERS}/0" in missing
    (older,) = damage(audit(with_older_manifest))
    assert f"no manifest has offsets 3 to 4 of {ORDERS}/0" in older
    assert damage(audit(with_manifest)) == damage(audit(of_deleted_topic)) == []


def test_a_file_with_records_that_neither_a_manifest_nor_a_segment_has_is_damage() -> None:
    """The manifest that names it was deleted, or not copied; the segments were trimmed. Brokers refuse the partition."""
    name = history_file_name(Offset(6), Offset(11), 2, f"{6:016x}")
    key = history_file_key("orders", TopicPartition(ORDERS, Partition(0)), name)

    async def beyond(bucket: Bucket) -> None:
        await bucket.two_sessions()
        await bucket.history(0, 6)
        await bucket.store.create(key, [b"x"])

    async def in_segments(bucket: Bucket) -> None:
        await beyond(bucket)
        await bucket.segment(2, 1, (ORDERS, 0, 2, [(10, 2)]))

    async def without_any_manifest(bucket: Bucket) -> None:
        await bucket.sign()
        first = history_file_key("orders", TopicPartition(ORDERS, Partition(0)), name.replace("-2-", "-1-"))
        await bucket.store.create(first, [b"x"])

    async def of_deleted_topic(bucket: Bucket) -> None:
        await beyond(bucket)
        await bucket.store.create(deleted_topic_key("orders", ORDERS, Revision(9)), [b""])

    what = f"it holds records up to 11, and {ORDERS}/0 would end at 10: manifests were deleted, or not copied"
    assert damage(audit(beyond)) == [f"{key}: {what}"]
    assert damage(audit(in_segments)) == damage(audit(of_deleted_topic)) == []
    (alone,) = damage(audit(without_any_manifest))
    assert "would end at 0" in alone


def test_footers_below_a_trim_marker_come_from_an_index_where_the_segments_are_gone() -> None:
    async def replica(bucket: Bucket) -> None:
        await indexed(bucket)
        for seq in range(2):
            await bucket.store.delete(segment_key(SessionId(1), SegmentSeq(seq)))
        await bucket.store.create(trimmed_key(SessionId(1), SegmentSeq(2)), [b"{}"])

    first = damage(audit(replica))[0]
    assert first.startswith(trimmed_key(SessionId(1), SegmentSeq(2)))
    assert "offsets 0 to 5 of 2 partitions" in first
    assert "the last segments below the marker are gone" in first


def test_an_unreadable_footer_below_a_trim_marker_is_noted() -> None:
    def cut(body: bytearray) -> None:
        del body[-1]

    async def torn(bucket: Bucket) -> None:
        await bucket.two_sessions()
        await bucket.change(1, 1, cut)
        await bucket.store.create(trimmed_key(SessionId(1), SegmentSeq(2)), [b"{}"])
        await bucket.history(0, 6)
        empty = Manifest(BILLS, Partition(0), 1, "w", 0, "delete-records", Offset(1), Offset(1))
        await bucket.store.create(manifest_key("bills", empty.topic_partition, 1), [encode_manifest(empty)])

    (noted,) = audit(torn).findings
    assert (noted.severity, noted.where) == ("note", segment_key(SessionId(1), SegmentSeq(1)))


def test_a_cluster_that_compacts_meanwhile_is_not_called_damaged() -> None:
    """The manifest is listed, then the file that it names is merged away and deleted before it is looked at."""

    async def run() -> Audit:
        bucket = Bucket()
        await bucket.two_sessions()
        manifest = await bucket.history(0, 6)

        class Merging(MemoryObjectStore):
            merged = False

            async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
                body = await super().get(key, start=start, end=end)
                if key == manifest_key("orders", manifest.topic_partition, 1) and not self.merged:
                    self.merged = True
                    await bucket.store.delete(orders_key(manifest, 0))
                    await bucket.history(0, 3, 6, version=2, superseded=(Superseded(1, 0, "w"),))
                return body

        store = Merging()
        store._objects, store._keys = bucket.store._objects, bucket.store._keys
        return await audit_bucket(store)

    assert damage(asyncio.run(run())) == []


def test_a_session_that_is_trimmed_meanwhile_is_listed_again() -> None:
    """Its first segment goes while its footers are read; those that are left count, and nothing is missing."""

    async def run() -> Audit:
        bucket = Bucket()
        await bucket.two_sessions()
        first = segment_key(SessionId(1), SegmentSeq(0))

        class Trimming(MemoryObjectStore):
            trimmed = False

            async def tail(self, key: str, bytes_max: int) -> Tail:
                if key == first and not self.trimmed:
                    self.trimmed = True
                    await bucket.history(0, 5)
                    empty = Manifest(BILLS, Partition(0), 1, "w", 0, "delete-records", Offset(1), Offset(1))
                    await bucket.store.create(manifest_key("bills", empty.topic_partition, 1), [encode_manifest(empty)])
                    await bucket.store.create(trimmed_key(SessionId(1), SegmentSeq(1)), [b"{}"])
                    await bucket.store.delete(first)
                return await super().tail(key, bytes_max)

        store = Trimming()
        store._objects, store._keys = bucket.store._objects, bucket.store._keys
        return await audit_bucket(store)

    found = asyncio.run(run())
    assert found.findings == []
    assert found.records == 12


def test_a_partition_that_moves_between_two_pages_of_the_listing_is_not_called_damaged() -> None:
    """Its old leader writes on when its session was listed, and the new one before its own is: offsets seem to be missing."""

    async def run(*, lost: bool) -> Audit:
        bucket = Bucket()
        await bucket.sign()
        await bucket.claim(1)
        await bucket.segment(1, 0, (ORDERS, 0, 1, [(0, 3)]))
        await bucket.claim(2)

        class Moving(MemoryObjectStore):
            moved = False

            async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
                page = await super().list(prefix, start_after=start_after, limit=min(limit, 2))
                if not self.moved:
                    self.moved = True
                    if not lost:
                        await bucket.segment(1, 1, (ORDERS, 0, 1, [(3, 2)]))
                    await bucket.segment(2, 0, (ORDERS, 0, 2, [(5, 1)]))
                return page

        store = Moving()
        store._objects, store._keys = bucket.store._objects, bucket.store._keys
        return await audit_bucket(store)

    assert damage(asyncio.run(run(lost=False))) == []
    assert ["offsets 3 to 4 are missing" in what for what in damage(asyncio.run(run(lost=True)))] == [True]
