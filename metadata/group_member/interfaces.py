"""Defines what a group member needs of the reader of its partitions, and of its group's coordinator. Pure.

The coordinator is reached over gRPC, through a broker's router, or in the same process.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from metadata.errors import TidelogError
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.model import Generation, InstanceId, Joined, JoinRequest, MemberId, Synced, SyncRequest

# First and largest pause between two attempts of a call; pauses double.
RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 1.0


class RebalanceListener(Protocol):
    """Reads what the member owns. The member makes one call at a time.

    An error from any of these ends the member, unless it is a retryable one of `partition_counts`: the member calls `lost`,
    leaves the
    group, and run() raises the error. `assigned` and `revoked` are cancelled where the member is lost meanwhile: `lost` follows,
    with
    all that it owned.
    """

    def subscribed(self) -> Mapping[str, int]:
        """Returns the topics that the subscription matches now, with partition counts. Called often; does no I/O."""
        ...

    async def partition_counts(self, topics: Collection[str]) -> Mapping[str, int]:
        """Returns the partition counts of any topics, for the leader of the members; missing topics are left out."""
        ...

    async def assigned(self, partitions: frozenset[TopicPartitionName]) -> None:
        """Begins to read these partitions."""
        ...

    async def revoked(self, partitions: frozenset[TopicPartitionName]) -> None:
        """Stops reading, commits (it still counts), then returns: another member may own them afterwards."""
        ...

    async def lost(self, partitions: frozenset[TopicPartitionName]) -> None:
        """Stops reading at once and commits nothing: another member may own them already."""
        ...


class CoordinatorClient(Protocol):
    """Calls a group's coordinator. Errors are those of metadata/errors.py; cancelling a call ends its wait there."""

    async def join(self, name: str, request: JoinRequest) -> Joined: ...
    async def sync(self, name: str, request: SyncRequest) -> Synced: ...
    async def heartbeat(self, name: str, member_id: MemberId, instance_id: InstanceId, generation: Generation) -> None: ...
    async def leave(self, name: str, leaving: Sequence[tuple[MemberId, InstanceId]]) -> list[TidelogError | None]: ...
