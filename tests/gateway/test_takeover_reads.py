"""Taking over many partitions reads each object of a dead leader once, and leaves less to read for the next one."""

from __future__ import annotations

from metadata.model import SessionId
from segments.bucket_layout import parse_wal_key, session_prefix
from tests.gateway.virtual_cluster import SEGMENTS, Process, World, in_a_world

MANY = 400
"""Partitions: appointed in several transactions."""


def session_of(process: Process) -> SessionId:
    assert process.session is not None
    return SessionId(process.session)


def reads_of(process: Process, session: SessionId) -> list[tuple[str, str]]:
    """What was read of the objects that hold footers, and how often it was listed."""
    prefix = session_prefix(session)
    return [(what, key) for _, what, key in process.to_bucket.calls if key.startswith(prefix) and what in {"list", "get", "tail"}]


def test_partitions_that_are_appointed_in_many_transactions_are_read_together() -> None:
    async def scenario(world: World) -> None:
        b1, b2 = await world.start("b1", "b2")
        partitions = await world.topic("orders", MANY)
        mine = [partition for partition in partitions if world.leader(partition) is b1]
        await world.keep_producing(mine[:: len(mine) // 4], for_s=2)
        session = session_of(b1)
        b1.kill()
        await world.until(lambda: all(world.leader(partition) is b2 for partition in mine))
        footers = [read for read in reads_of(b2, session) if read[0] != "list"]
        assert footers
        assert len(footers) == len(set(footers)), "each once"
        await world.check()

    in_a_world(scenario)


def test_who_takes_over_after_that_reads_the_index_that_the_one_before_has_written() -> None:
    async def scenario(world: World) -> None:
        b1, b2 = await world.start("b1", "b2")
        partitions = await world.topic("orders", 4)
        await world.keep_producing(partitions, for_s=2)
        session = session_of(b1)
        while last_place(world, session) % SEGMENTS.index_every_segments < SEGMENTS.index_every_segments - 2:
            mine = [partition for partition in partitions if world.leader(partition) is b1]
            await world.produce(mine[0])
        b1.kill()
        await world.until(lambda: all(world.leader(partition) is b2 for partition in partitions))
        [b3] = await world.start("b3")
        await world.until(lambda: any(world.leader(partition) is b3 for partition in partitions))
        b2.kill()
        await world.until(lambda: all(world.leader(partition) is b3 for partition in partitions))
        assert [key for what, key in reads_of(b3, session) if what == "tail"] == []
        await world.check()

    in_a_world(scenario)


def last_place(world: World, session: SessionId) -> int:
    """Of its segments on the bucket."""
    parsed = [parse_wal_key(key) for key in world.bucket._keys if key.startswith(session_prefix(session))]
    return max(found.seq for found in parsed if found is not None and found.seq is not None)
