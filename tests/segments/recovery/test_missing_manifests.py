"""A partition whose newest manifests were deleted is refused, and one at whose files compactors are at work never is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import Corrupt
from metadata.model import Offset, Partition, TopicPartition
from segments.bucket.layout import history_file_key, history_file_name, manifest_key
from segments.history.manifest import Manifest
from segments.history.manifest_edits import with_log_start, with_replaced
from segments.recovery.missing_manifests import FILES_TOGETHER, NAMED_MAX, newest_files
from segments.recovery.recovered_partition import RecoveredPartition
from segments.recovery.takeover_prefetch import TakeoverPrefetch
from tests.kit.segments.batches import ORDERS, PAYMENTS, led, sequenced_batch
from tests.kit.segments.manifests import TOPIC, file_of, plant, writer_of
from tests.kit.segments.past_sessions import SETTINGS
from tests.kit.segments.scripted_store import ScriptedStore
from tests.segments.recovery.test_recover_with_manifests import SEGMENTS, Compacted, assert_goes_on
from tests.simulation.virtual_loop import run


class WithFiles(Compacted):
    """Its manifests name files that are there."""

    def upload(self, base: int, last: int, *, version: int, nonce: int = 0) -> str:
        key = history_file_key(TOPIC, ORDERS, file_of(base, last, version=version, nonce=nonce).name)
        self.plant(key, b"parquet")
        return key

    def convert(self, offset: int, *, before: Manifest | None = None) -> Manifest:
        self.upload(before.compacted_to if before else 0, offset - 1, version=before.version + 1 if before else 1)
        return self.compact(offset, before=before)

    def lose(self, *versions: int) -> None:
        for version in versions:
            self.remove(manifest_key(TOPIC, ORDERS, version))


def test_a_quiet_partition_whose_only_manifest_was_deleted_is_refused_and_its_file_is_named() -> None:
    bucket = WithFiles()
    bucket.convert(SEGMENTS)
    bucket.trim(SEGMENTS)
    assert_goes_on(bucket.recover())
    bucket.lose(1)
    with pytest.raises(Corrupt, match=r"were deleted, or not copied: it would end at offset 0, and files hold") as refused:
        bucket.recover()
    assert history_file_key(TOPIC, ORDERS, file_of(0, SEGMENTS - 1).name) in refused.value.message
    assert manifest_key(TOPIC, ORDERS, 0)[:-20] in refused.value.hint


@pytest.mark.parametrize("trimmed", [5, 6, SEGMENTS])
def test_a_quiet_partition_whose_newest_manifest_was_deleted_does_not_go_on_at_an_older_offset(trimmed: int) -> None:
    bucket = WithFiles()
    bucket.convert(SEGMENTS, before=bucket.convert(4))
    bucket.trim(trimmed)
    bucket.lose(2)
    with pytest.raises(Corrupt):
        bucket.recover()


def test_a_partition_that_lost_a_manifest_is_refused_and_no_other() -> None:
    bucket = WithFiles()
    bucket.segment(2, {PAYMENTS: [sequenced_batch(9, 0)]})
    bucket.convert(SEGMENTS)
    bucket.trim(SEGMENTS)
    bucket.lose(1)
    found = run(bucket.recover_all({ORDERS: [led(1)], PAYMENTS: [led(2)]}))
    assert isinstance(found[ORDERS], Corrupt)
    assert isinstance(found[PAYMENTS], RecoveredPartition)


def test_a_file_two_versions_above_the_newest_manifest_is_proof_though_no_offset_is_missing() -> None:
    bucket = WithFiles()
    first = bucket.convert(4)
    second = bucket.convert(SEGMENTS, before=first)
    merged = file_of(0, SEGMENTS - 1, version=3)
    bucket.upload(0, SEGMENTS - 1, version=3)
    plant(
        bucket,
        with_replaced(second, old=[one.name for one in second.files], new=[merged], cause="merge", writer=writer_of(1), now_ms=0),
    )
    bucket.lose(2, 3)
    with pytest.raises(Corrupt, match="was written for version 3, and the newest manifest is 1"):
        bucket.recover()


def test_the_files_of_a_prefetched_partition_are_not_listed_again_and_refuse_it_as_well() -> None:
    bucket = WithFiles()
    bucket.convert(SEGMENTS, before=bucket.convert(4))
    bucket.trim(SEGMENTS)
    bucket.lose(2)

    async def recovered() -> RecoveredPartition | Corrupt:
        ahead = TakeoverPrefetch(bucket, SETTINGS)
        assert await ahead.read({ORDERS: [led(1)]}, {ORDERS: TOPIC})
        begun = ahead.take({ORDERS})
        assert begun
        bucket.calls.clear()
        return (await bucket.recover_all({ORDERS: [led(1, released_at_seq=SEGMENTS)]}, begun=begun))[ORDERS]

    assert isinstance(run(recovered()), Corrupt)
    assert bucket.count("list") == 1, "of the manifests"


@given(
    compacted=st.integers(0, SEGMENTS),
    uploaded=st.integers(1, SEGMENTS),
    attempts=st.integers(1, 3),
    log_start=st.integers(0, SEGMENTS),
    data=st.data(),
)
def test_a_conversion_that_is_not_finished_or_was_given_up_never_refuses_its_partition(
    compacted: int, uploaded: int, attempts: int, log_start: int, data: st.DataObject
) -> None:
    bucket = WithFiles()
    manifest = bucket.convert(compacted) if compacted else None
    if manifest is not None and log_start:
        manifest = with_log_start(manifest, Offset(log_start), writer=writer_of(3), now_ms=0)
        plant(bucket, manifest)
    bucket.trim(data.draw(st.integers(0, compacted)))
    for attempt in range(attempts):  # of compactors that died, or lost the create
        last = min(SEGMENTS, compacted + uploaded) - 1
        if last >= compacted:
            bucket.upload(
                compacted, last, version=data.draw(st.integers(1, (manifest.version if manifest else 0) + 1)), nonce=attempt
            )
    assert bucket.recover().end_offset == SEGMENTS


@given(st.lists(st.integers(0, 12), unique=True, min_size=1), st.sampled_from([1, 6, 7, 90, 170, 400]))
def test_the_newest_files_of_neighbours_are_found_whatever_pages_they_lie_on(asked: list[int], files: int) -> None:
    store = ScriptedStore()
    partitions = [TopicPartition(ORDERS.topic_id, Partition(number)) for number in range(13)]
    for partition in partitions[::2]:
        for number in range(files):
            name = history_file_name(Offset(number), Offset(number), 1 + number % 7, f"{number:016x}")
            store.plant(history_file_key(TOPIC, partition, name), b"")
    wanted = {partitions[number]: TOPIC for number in asked}
    found = run(newest_files(store, wanted, reads_max=SETTINGS.footer_reads_max))
    assert set(found) == {partition for partition in wanted if partition.partition % 2 == 0}
    for newest in found.values():
        assert newest.of_version.version == min(files, 7)
        assert [file.last_offset for file in newest.furthest] == list(range(files))[::-1][:NAMED_MAX]


def test_partitions_without_files_cost_a_request_for_256_of_them() -> None:
    store = ScriptedStore()
    partitions = [TopicPartition(ORDERS.topic_id, Partition(number)) for number in range(1_000)]
    assert run(newest_files(store, dict.fromkeys(partitions, TOPIC), reads_max=16)) == {}
    assert store.count("list") == 4


def test_partitions_of_many_files_are_listed_side_by_side() -> None:
    store = ScriptedStore()
    partitions = [TopicPartition(ORDERS.topic_id, Partition(number)) for number in range(5)]
    for partition in partitions:
        for number in range(FILES_TOGETHER // 2):
            name = history_file_name(Offset(number), Offset(number), 1, f"{number:016x}")
            store.plant(history_file_key(TOPIC, partition, name), b"")
    found = run(newest_files(store, dict.fromkeys(partitions, TOPIC), reads_max=16))
    assert {where: files.furthest[0].last_offset for where, files in found.items()} == dict.fromkeys(
        partitions, FILES_TOGETHER // 2 - 1
    )
    assert store.count("list") == 1 + len(partitions)
