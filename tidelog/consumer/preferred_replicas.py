"""Selects the broker for fetches of each partition: its leader, or one of the reader's rack that it names (KIP-392). Pure.

    leader, rack named ──names a broker──▶ that broker, until who leads is asked again ──▶ leader, rack named
                                               └ any failure there ─▶ leader, no rack named, for as long

So a broker of the rack that is registered and fails does not send a reader in circles. A reader that names no rack fetches from
leaders alone. Invariant: a partition is fetched from one place at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from metadata.groups.assignors import TopicPartitionName


class FetchSource(NamedTuple):
    """Partitions of one place are fetched together."""

    address: str
    # That the fetch names; empty where the broker is to answer whatever its rack is.
    client_rack: str


class _Elsewhere(NamedTuple):
    # None: at its leader, whichever that is, without a rack.
    source: FetchSource | None
    until_s: float


class PreferredReplicas:
    """The preferred replicas of one reader. `now_s` is from any monotonic clock."""

    def __init__(self, client_rack: str, *, age_s: float) -> None:
        """`age_s`: time until the leader is asked again."""
        self._client_rack = client_rack
        self._age_s = age_s
        self._elsewhere: dict[TopicPartitionName, _Elsewhere] = {}
        # By address: thousands of partitions are asked for, again and again.
        self._leaders: dict[str, FetchSource] = {}

    def of(self, partition: TopicPartitionName, leader: str, now_s: float) -> FetchSource:
        """`leader`: its address, as it is known now."""
        if partition in self._elsewhere:
            held = self._elsewhere[partition]
            if held.until_s > now_s:
                return held.source or FetchSource(leader, "")
            del self._elsewhere[partition]
        source = self._leaders.get(leader)
        if source is None:
            source = self._leaders[leader] = FetchSource(leader, self._client_rack)
        return source

    def is_elsewhere(self, partition: TopicPartitionName) -> bool:
        """Returns whether another broker than the leader serves it; an error there says nothing about the partition."""
        held = self._elsewhere.get(partition)
        return held is not None and held.source is not None

    def prefer(self, partition: TopicPartitionName, address: str, now_s: float) -> None:
        """Follows a leader to the broker that it names. A named broker that names another is not followed."""
        source = None if self.is_elsewhere(partition) else FetchSource(address, self._client_rack)
        self._elsewhere[partition] = _Elsewhere(source, now_s + self._age_s)

    def avoid(self, partitions: Iterable[TopicPartitionName], now_s: float) -> list[TopicPartitionName]:
        """Moves partitions that failed at another broker back to their leaders. Returns the moved ones."""
        moved = [partition for partition in partitions if self.is_elsewhere(partition)]
        self._elsewhere.update((partition, _Elsewhere(None, now_s + self._age_s)) for partition in moved)
        return moved

    def forget(self, partition: TopicPartitionName) -> None:
        """Forgets a partition that is not read any more, or moves."""
        self._elsewhere.pop(partition, None)
