"""The metadata are lost and rebuilt from the bucket: consumer groups go on as they were in the snapshot."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.cluster.view import partitions_of
from gateway.controller.metadata_snapshots import take_snapshot
from gateway.groups.coordinator import GroupCoordinator
from metadata.errors import StaleGeneration
from metadata.groups.model import NO_INSTANCE, Generation, Joined, MemberId, SyncRequest
from metadata.groups.offsets import CommittedOffset
from metadata.groups.settings import GroupSettings
from metadata.model import SessionId
from metadata.store.interface import MetadataStore
from segments.object_store.memory import MemoryObjectStore
from tests.kit.gateway.listenerless_cluster import LAYOUT, cluster_of, now_ms
from tests.kit.metadata.played_group import request
from tests.tidelog.bucket.test_restore import sqlite
from tidelog.bucket.restore import restore_cluster

pytestmark = pytest.mark.slow
NAME = "billing/é"


async def _sure() -> None:
    """No other broker runs."""


@asynccontextmanager
async def coordinator(store: MetadataStore, session: int) -> AsyncIterator[GroupCoordinator]:
    numbers = itertools.count(1)
    groups = GroupCoordinator(
        store,
        LAYOUT,
        GroupSettings(group_initial_rebalance_delay_ms=0, commit_linger_ms=0),
        session=lambda: SessionId(session),
        coordinates=lambda _: True,
        verify=_sure,
        is_proven=lambda: True,
        now_ms=now_ms,
        new_member_id=lambda client: MemberId(f"{client}-{next(numbers)}"),
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(groups.run())
        await asyncio.sleep(0)
        yield groups
        running.cancel()


async def assigned(groups: GroupCoordinator, member: str = "") -> Joined:
    """Alone in the next generation."""
    joined = await groups.join(NAME, request(member))
    await groups.sync(NAME, SyncRequest(joined.member_id, NO_INSTANCE, joined.generation, {joined.member_id: b"all"}))
    return joined


def test_groups_and_committed_offsets_are_those_of_the_snapshot(tmp_path: Path) -> None:
    async def main() -> None:
        bucket = MemoryObjectStore()
        async with sqlite(tmp_path / "lost") as lost, cluster_of(bucket, lost, ["b1"], killed=True) as cluster:
            orders = await cluster.create("orders", 2)
            p0, p1 = partitions_of(orders)
            async with coordinator(lost, 1) as groups:
                for sequence in range(9):
                    for at in (p0, p1):
                        await cluster.produce(at, 1, sequence)
                member = await assigned(groups)

                async def commit(offset: int, generation: Generation) -> None:
                    committed = {at: CommittedOffset(offset=offset, metadata="m", committed_at_ms=0) for at in (p0, p1)}
                    assert await groups.commit(NAME, member.member_id, NO_INSTANCE, generation, committed) == {}

                await commit(7, member.generation)
                assert await take_snapshot(bucket, lost, LAYOUT, now_ms=now_ms) is not None
                again = await assigned(groups, member.member_id)
                await commit(9, again.generation)

        async with sqlite(tmp_path / "empty") as empty:
            assert (await restore_cluster(bucket, empty, LAYOUT, now_ms=now_ms)).written
            async with coordinator(empty, 9) as groups:
                found = (await groups.offsets(NAME)).committed
                assert {at: (each.offset, each.metadata) for at, each in found.items()} == {p0: (7, "m"), p1: (7, "m")}
                with pytest.raises(StaleGeneration):
                    await groups.heartbeat(NAME, member.member_id, NO_INSTANCE, again.generation)
                await groups.heartbeat(NAME, member.member_id, NO_INSTANCE, member.generation)
                assert (await assigned(groups, member.member_id)).generation == member.generation + 1

    asyncio.run(main())
