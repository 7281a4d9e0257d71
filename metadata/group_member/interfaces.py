"""What a member of a consumer group tells whoever reads its partitions, and asks of it. Pure.

How long it waits before it repeats one of its calls, from RETRY_S to RETRY_S_MAX.

What a member asks of its group's coordinator, wherever that is: over gRPC, through a broker's router, or in the same process. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from metadata.errors import TidelogError
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.model import Generation, InstanceId, Joined, JoinRequest, MemberId, Synced, SyncRequest

# Between two attempts of a call: each pause is twice the one before.
RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 1.0


class RebalanceListener(Protocol):
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


class CoordinatorClient(Protocol):
    """Errors are those of metadata/errors.py. A call that is cancelled waits no longer at the coordinator."""

    async def join(self, name: str, request: JoinRequest) -> Joined: ...
    async def sync(self, name: str, request: SyncRequest) -> Synced: ...
    async def heartbeat(self, name: str, member_id: MemberId, instance_id: InstanceId, generation: Generation) -> None: ...
    async def leave(self, name: str, leaving: Sequence[tuple[MemberId, InstanceId]]) -> list[TidelogError | None]: ...
