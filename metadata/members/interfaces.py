"""What a member of a consumer group tells whoever reads its partitions, and asks of it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from metadata.groups.assignors import TopicPartitionName


class PartitionReader(Protocol):
    """Who reads what the member owns. It is told one thing at a time.

    What any of these raises ends the member: it tells `lost`, leaves the group, and its run() raises the same; but for an error of
    `partition_counts` that is retryable. `assigned` and `revoked` are cancelled where the member is lost meanwhile: `lost` follows,
    with all that it owned.
    """

    def subscribed(self) -> Mapping[str, int]:
        """Topics that the subscription matches now, with their partition counts. It is asked again and again, and does no I/O."""
        ...

    async def partition_counts(self, topics: Collection[str]) -> Mapping[str, int]:
        """Of any topics, for the member that makes the assignment; topics that are not there are left out."""
        ...

    async def assigned(self, partitions: frozenset[TopicPartitionName]) -> None:
        """These are new."""
        ...

    async def revoked(self, partitions: frozenset[TopicPartitionName]) -> None:
        """Stop reading, commit (it still counts), then return: somebody else may own them then."""
        ...

    async def lost(self, partitions: frozenset[TopicPartitionName]) -> None:
        """Somebody else may own them already: stop reading, at once, and commit nothing."""
        ...
