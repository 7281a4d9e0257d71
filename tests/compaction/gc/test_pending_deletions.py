"""Deletions that leaders report are polled until they are found, with back-off, and for a bounded time."""

from __future__ import annotations

from compaction.gc.pending_deletions import PAUSE_MS, PAUSE_MS_MAX, PendingDeletions
from metadata.cluster.manifest_notice import ManifestNotice
from tests.kit.segments.batches import ORDERS, PAYMENTS


def deletion(version: int) -> ManifestNotice:
    return ManifestNotice(*ORDERS, version, is_deletion=True)


def lookup_times(heard: PendingDeletions, *, until_ms: int, each_ms: int = 1000) -> list[int]:
    return [now_ms for now_ms in range(0, until_ms, each_ms) if heard.due(now_ms=now_ms)]


def test_a_missing_manifest_is_looked_up_at_growing_intervals_while_its_notice_stands() -> None:
    heard = PendingDeletions()
    heard.hear([deletion(3)], now_ms=0)
    times = lookup_times(heard, until_ms=3_600_000)
    assert times[:4] == [0, PAUSE_MS, 3 * PAUSE_MS, 7 * PAUSE_MS]
    assert 600_000 - PAUSE_MS_MAX <= times[-1] < 600_000
    assert len(times) < 20
    assert not heard._heard


def test_a_deletion_that_was_found_is_forgotten_and_a_notice_of_a_compaction_is_not_looked_for() -> None:
    heard = PendingDeletions()
    heard.hear([deletion(3), ManifestNotice(*PAYMENTS, 9)], now_ms=0)
    assert heard.due(now_ms=0) == [(ORDERS, 3)]
    heard.found(ORDERS)
    assert lookup_times(heard, until_ms=3_600_000) == []


def test_a_further_notice_is_due_at_once_and_no_older_one_takes_a_version_back() -> None:
    heard = PendingDeletions()
    heard.hear([deletion(3)], now_ms=0)
    assert heard.due(now_ms=0)
    heard.hear([deletion(2)], now_ms=1)
    assert heard.due(now_ms=1) == [(ORDERS, 3)]
    heard.hear([deletion(4)], now_ms=2)
    assert heard.due(now_ms=2) == [(ORDERS, 4)]
