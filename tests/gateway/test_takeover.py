"""What a broker does about partitions that it is appointed to."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gateway.takeover import TakeOver
from metadata.errors import SessionFenced
from metadata.model import LeaderEpoch, Partition, SegmentSeq, SessionId, TopicId, TopicPartition
from metadata.partition_assignments import PartitionState, SessionSpan
from metadata.partition_cache import PartitionCache
from segments.footer_cache import FooterCache
from segments.log import Log
from segments.memory_store import MemoryStore
from segments.session import Session
from segments.settings import SegmentSettings
from tests.simulation.virtual_loop import run

PARTITION = TopicPartition(TopicId("0" * 32), Partition(0))
OURS = Session(SessionId(2), bytes(16))


class SealedLog:
    session = OURS
    looks = 0

    async def look_for_seal(self) -> None:
        self.looks += 1


class NothingIsLed:
    def led_by(self, session: SessionId) -> set[TopicPartition]:
        return set()


class View:
    partitions = cast(PartitionCache, NothingIsLed())


def appointed_again(released_at_seq: SegmentSeq | None) -> PartitionState:
    before = SessionSpan(LeaderEpoch(0), OURS.id, released_at_seq)
    spans = (before, SessionSpan(LeaderEpoch(1), SessionId(3), SegmentSeq(0)), SessionSpan(LeaderEpoch(2), OURS.id))
    return PartitionState(leader_session=OURS.id, leader_epoch=LeaderEpoch(2), sessions=spans)


def test_a_session_that_was_sealed_and_is_appointed_again_looks_for_its_seal_and_serves_nothing() -> None:
    """A controller that was not yet told that the session is gone appoints it; the broker must live to begin another."""
    log = SealedLog()
    settings = SegmentSettings()
    parts: dict[str, Any] = {"layout": None, "settings": settings, "footers": FooterCache(bytes_max=1)}
    takeover = TakeOver(
        cast(Log, log), MemoryStore(), cast(Any, None), cast(Any, View()), now_ms=lambda: 0, took_over=lambda: None, **parts
    )

    async def scenario() -> None:
        with pytest.raises(SessionFenced, match="session 2 was sealed"):
            await takeover._serve({PARTITION: appointed_again(None)})

    run(scenario())
    assert log.looks == 1
