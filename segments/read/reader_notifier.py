"""Who waits for news of which partition: readers for new records, a handover for the last commit.

Invariants: they are woken in the order in which they came; of a partition for which nobody waits there is nothing in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from metadata.model import TopicPartition


class WaitingReaders:
    def __init__(self) -> None:
        self._woken: dict[TopicPartition, dict[asyncio.Event, None]] = {}

    def __len__(self) -> int:
        """Partitions for which somebody waits."""
        return len(self._woken)

    @contextmanager
    def at(self, partitions: Iterable[TopicPartition]) -> Iterator[asyncio.Event]:
        """An event that is set whenever there is something new of any of them."""
        woken, watched = asyncio.Event(), list(partitions)
        for partition in watched:
            self._woken.setdefault(partition, {})[woken] = None
        try:
            yield woken
        finally:
            for partition in watched:
                self._forget(partition, woken)

    def wake(self, partition: TopicPartition) -> None:
        for woken in self._woken.get(partition, ()):
            woken.set()

    def _forget(self, partition: TopicPartition, woken: asyncio.Event) -> None:
        waiting = self._woken.get(partition, {})
        waiting.pop(woken, None)
        if not waiting:
            self._woken.pop(partition, None)
