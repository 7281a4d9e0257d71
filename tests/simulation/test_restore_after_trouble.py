"""After a world of trouble the metadata are thrown away and rebuilt from the bucket: they must say what the lost ones said.

These clusters have no id, and so no snapshots: all that is restored comes from footers, claims and mirrors.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from metadata.cluster.leadership import PartitionState, read_all
from metadata.model import SessionId, TopicPartition
from metadata.store.keys import KeyLayout
from metadata.topics.registry import TopicRegistry
from segments.bucket.cluster_record import sign_bucket
from segments.object_store.interface import ObjectStore
from segments.recovery.recover import recover
from segments.recovery.recovered_partition import RecoveredPartition
from segments.settings import SegmentSettings
from segments.wal.session import Session
from tests.simulation import bucket_reader, world
from tests.simulation.archive_store import ArchiveStore
from tests.simulation.bucket_reader import BucketContents
from tests.simulation.etcd_model import EtcdModel
from tests.simulation.virtual_loop import virtual_loop
from tidelog.bucket.restore import Restored, restore_cluster

LAYOUT = KeyLayout()

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("seed", range(4))
def test_a_restore_brings_back_what_was_lost(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"seed {seed}")
    stores: list[EtcdModel] = []
    judged: list[Restored] = []

    def opened(*arguments: Any, **options: Any) -> EtcdModel:
        stores.append(EtcdModel(*arguments, **options))
        return stores[-1]

    async def read_and_restore(bucket: ObjectStore) -> BucketContents:
        contents = await bucket_reader.read_bucket(bucket)
        if not isinstance(bucket, ArchiveStore):
            return contents  # what there ever was, for the judge
        await sign_bucket(bucket, "simulated", now_ms=0)
        judged.append(await restored_and_compared(bucket, stores[0], contents))
        return contents

    monkeypatch.setattr(world, "EtcdModel", opened)
    monkeypatch.setattr(world, "read_bucket", read_and_restore)
    outcome = world.simulate(seed, trouble_s=40)
    assert outcome.violations == []
    assert outcome.failures == []
    (restored,) = judged
    assert restored.plan.records > 0


async def restored_and_compared(bucket: ObjectStore, lost: EtcdModel, contents: BucketContents) -> Restored:
    empty = EtcdModel(virtual_loop().time)
    restored = await restore_cluster(bucket, empty, LAYOUT, now_ms=virtual_loop().now_ms)
    assert restored.written
    assert restored.damage == []
    topics = {topic.name: msgspec.structs.replace(topic, revision=0) for topic in (await TopicRegistry(lost, LAYOUT).list()).topics}
    again = {topic.name: msgspec.structs.replace(topic, revision=0) for topic in (await TopicRegistry(empty, LAYOUT).list()).topics}
    assert again == topics
    before, after = await read_all(lost, LAYOUT), await read_all(empty, LAYOUT)
    for partition, (state, _) in after.items():
        check_state(before[partition][0] if partition in before else None, state)
    by = Session(SessionId(restored.plan.next_session), bytes(16))
    spans = {partition: state.sessions for partition, (state, _) in after.items()}
    names = {topic.id: topic.name for topic in again.values()}
    rebuilt = await recover(
        bucket,
        spans,
        by=by,
        settings=SegmentSettings(),
        now_ms=virtual_loop().now_ms,
        topics={partition: names[partition.topic_id] for partition in after},
    )
    assert ends(rebuilt) == {partition: end_of(str(partition), contents) for partition in after}
    await empty.close()
    return restored


def check_state(before: PartitionState | None, after: PartitionState) -> None:
    """`before` may name sessions that wrote nothing; `after` may name none that it does not know."""
    if before is not None:
        assert after.leader_epoch > before.leader_epoch
        known = {(span.leader_epoch, span.session) for span in before.sessions}
        assert {(span.leader_epoch, span.session) for span in after.sessions[:-1]} <= known


def end_of(partition: str, contents: BucketContents) -> int:
    """Behind the last record that there ever was; the last ones may have been deleted, or have gone for others of their key."""
    log = contents.log.get(partition, ())
    known = contents.compacted_to.get(partition, 0), contents.log_start_offsets.get(partition, 0)
    return max(*known, log[-1][0] + 1 if log else 0)


def ends(rebuilt: dict[TopicPartition, RecoveredPartition | Any]) -> dict[TopicPartition, int]:
    for found in rebuilt.values():
        if not isinstance(found, RecoveredPartition):
            raise found
    return {partition: found.end_offset for partition, found in rebuilt.items()}
