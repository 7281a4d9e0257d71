"""Remembers deletions that leaders announced, until the manifest that holds them was found. Pure: the caller brings the time.

    notice ─▶ due now ─▶ not there? due again, after a longer pause each time ─▶ found, or its notice has expired: forgotten

DeleteRecords announces its manifest even if the bucket did not answer: it may land minutes later, or never. Bounded: one entry
for each partition, until its notice expires.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from metadata.cluster.manifest_notice import NOTICE_KEPT_S, ManifestNotice
from metadata.model import TopicPartition

PAUSE_MS: Final = 5_000
# Longest pause between two lookups of the same manifest: each is a listing, and a GET of the one that is there.
PAUSE_MS_MAX: Final = 60_000


@dataclass(slots=True)
class _Deletion:
    # Version of the manifest.
    version: int
    until_ms: float
    due_ms: float
    pause_ms: int = PAUSE_MS


class PendingDeletions:
    """Schedules the lookups of manifests of DeleteRecords."""

    def __init__(self) -> None:
        self._heard: dict[TopicPartition, _Deletion] = {}

    def hear(self, notices: Iterable[ManifestNotice], *, now_ms: int) -> None:
        """Takes notices of leaders; those of compactors are ignored."""
        for notice in notices:
            if notice.is_deletion:
                before = self._heard.get(notice.topic_partition)
                version = max(notice.version, before.version if before is not None else 0)
                self._heard[notice.topic_partition] = _Deletion(version, now_ms + NOTICE_KEPT_S * 1000, now_ms)

    def due(self, *, now_ms: int) -> list[tuple[TopicPartition, int]]:
        """Returns the partitions and versions to look for now. Each is due again later, unless it is `found`."""
        for partition in [partition for partition, deletion in self._heard.items() if deletion.until_ms <= now_ms]:
            del self._heard[partition]
        due = [(partition, deletion) for partition, deletion in self._heard.items() if deletion.due_ms <= now_ms]
        for _, deletion in due:
            deletion.due_ms = now_ms + deletion.pause_ms
            deletion.pause_ms = min(2 * deletion.pause_ms, PAUSE_MS_MAX)
        return [(partition, deletion.version) for partition, deletion in due]

    def found(self, partition: TopicPartition) -> None:
        self._heard.pop(partition, None)
