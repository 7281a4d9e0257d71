"""What a member asks of its group's coordinator, wherever that is: over gRPC, through a broker's router, or in the same process. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from metadata.errors import TidelogError
from metadata.groups.model import Generation, InstanceId, Joined, JoinRequest, MemberId, Synced, SyncRequest


class GroupCalls(Protocol):
    """Errors are those of metadata/errors.py. A call that is cancelled waits no longer at the coordinator."""

    async def join(self, name: str, request: JoinRequest) -> Joined: ...
    async def sync(self, name: str, request: SyncRequest) -> Synced: ...
    async def heartbeat(self, name: str, member_id: MemberId, instance_id: InstanceId, generation: Generation) -> None: ...
    async def leave(self, name: str, leaving: Sequence[tuple[MemberId, InstanceId]]) -> list[TidelogError | None]: ...
