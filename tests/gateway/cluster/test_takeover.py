"""What a broker does about partitions that it is appointed to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.cluster.takeover import Takeover
from metadata.cluster.leadership import PartitionState, SessionSpan
from metadata.cluster.leadership_cache import PartitionCache
from metadata.errors import SessionFenced
from metadata.model import LeaderEpoch, Partition, SegmentSeq, SessionId, TopicId, TopicPartition
from segments.bucket.layout import manifest_key
from segments.history.manifest import encode_manifest
from segments.log.session_log import SessionLog
from segments.object_store.memory import MemoryObjectStore
from segments.recovery.footer_cache import FooterCache
from segments.recovery.recovered_partition import RecoveredPartition
from segments.settings import SegmentSettings
from segments.wal.session import Session
from tests.kit.segments.manifests import compacted_to
from tests.simulation.virtual_loop import run

PARTITION = TopicPartition(TopicId("0" * 32), Partition(0))
OURS = Session(SessionId(2), bytes(16))


class SealedLog:
    """A log whose session is sealed; it is its own writer."""

    session = OURS
    seal_checks = 0

    def __init__(self) -> None:
        self.writer = self

    async def check_seal(self) -> None:
        self.seal_checks += 1


class NothingIsLed:
    set_back = None

    def led_by(self, session: SessionId) -> set[TopicPartition]:
        return set()


class View:
    partitions = cast(PartitionCache, NothingIsLed())


def appointed_again(released_at_seq: SegmentSeq | None) -> PartitionState:
    before = SessionSpan(LeaderEpoch(0), OURS.id, released_at_seq)
    spans = (before, SessionSpan(LeaderEpoch(1), SessionId(3), SegmentSeq(0)), SessionSpan(LeaderEpoch(2), OURS.id))
    return PartitionState(leader_session=OURS.id, leader_epoch=LeaderEpoch(2), sessions=spans)


def test_a_session_that_was_sealed_and_is_appointed_again_looks_for_its_seal_and_serves_nothing() -> None:
    """A controller that has not yet seen that the session is gone appoints it; the broker must live to begin another."""
    log = SealedLog()
    settings = SegmentSettings()
    parts: dict[str, Any] = {"layout": None, "settings": settings, "footers": FooterCache(bytes_max=1)}
    takeover = Takeover(
        cast(SessionLog, log),
        MemoryObjectStore(),
        cast(Any, None),
        cast(Any, View()),
        now_ms=lambda: 0,
        took_over=lambda: None,
        **parts,
    )

    async def scenario() -> None:
        with pytest.raises(SessionFenced, match="session 2 was sealed"):
            await takeover._serve({PARTITION: appointed_again(None)})

    run(scenario())
    assert log.seal_checks == 1


class OpenLog:
    """A log that takes note of what it leads."""

    session = OURS

    def __init__(self) -> None:
        self.manifests: dict[TopicPartition, int] = {}

    def lead(self, recovered: RecoveredPartition, leader_epoch: LeaderEpoch) -> None:
        self.manifests[recovered.partition] = recovered.manifest.version


@pytest.mark.parametrize(
    ("announced", "leads_still", "behind"),
    [(3, True, {PARTITION}), (2, True, set()), (0, True, set()), (3, False, None)],
    ids=["a newer one", "the one that was read", "none", "a newer one, and another leads meanwhile"],
)
def test_of_a_partition_for_which_a_newer_manifest_was_announced_during_the_takeover_the_newest_is_looked_for(
    announced: int, leads_still: bool, behind: set[TopicPartition] | None
) -> None:
    """The notice was heard before the partition was led here, so it was not followed."""
    span = SessionSpan(LeaderEpoch(0), OURS.id)
    state = PartitionState(leader_session=OURS.id, leader_epoch=LeaderEpoch(0), sessions=(span,))
    newest = compacted_to(2, before=compacted_to(1, partition=PARTITION), partition=PARTITION)
    assert newest.version == 2
    bucket, log, reported = MemoryObjectStore(), OpenLog(), list[set[TopicPartition]]()
    view = SimpleNamespace(
        partitions=SimpleNamespace(set_back=None, led_by=lambda _: {PARTITION}, get=lambda _: state if leads_still else None),
        topics=SimpleNamespace(by_id=lambda _: SimpleNamespace(name="orders")),
        compactions=SimpleNamespace(version=lambda _: announced),
    )

    async def scenario() -> None:
        await bucket.create(manifest_key("orders", PARTITION, newest.version), [encode_manifest(newest)])
        takeover = Takeover(
            cast(SessionLog, log),
            bucket,
            cast(Any, None),
            cast(Any, view),
            layout=cast(Any, None),
            settings=SegmentSettings(),
            footers=FooterCache(bytes_max=1),
            now_ms=lambda: 0,
            took_over=lambda: None,
            fell_behind=lambda partitions: reported.append(set(partitions)),
        )
        await takeover._serve({PARTITION: state})

    run(scenario())
    assert log.manifests == ({PARTITION: 2} if leads_still else {})
    assert reported == ([behind] if behind else [])
