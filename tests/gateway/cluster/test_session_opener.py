"""Two copies of the metadata on one bucket: of brokers that have them, those of one copy alone begin sessions that write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path

import pytest

from gateway.cluster.identity import check_knows_who_wrote
from gateway.cluster.session_opener import SessionOpener
from metadata.cluster.id_allocation import next_session
from metadata.errors import AlreadyExists, Rejected, SessionFenced, Unavailable
from metadata.model import SegmentSeq, SessionId
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from segments.bucket.layout import claim_key, segment_key
from segments.bucket.markers import begin_restoration
from segments.object_store.interface import Buffer
from segments.wal.session import Session, list_session
from tests.kit.metadata.faulty_store import FaultyStore
from tests.kit.segments.batches import ORDERS, TIMESTAMP_MS, batch_of, segment_of, stamped_run
from tests.kit.segments.scripted_store import LOST_ANSWER, LOST_REQUEST, REFUSED, ScriptedStore
from tests.kit.segments.serving import produce, serving
from tests.simulation.virtual_loop import run as virtually
from tests.simulation.virtual_loop import virtual_loop

LAYOUT = KeyLayout()


class Bucket(ScriptedStore):
    """Lets another process come between: `before` holds what happens before an object is created for the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, Callable[[], Awaitable[object]]] = {}

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        between = self.before.pop(key, None)
        if between is not None:
            await between()
        await super().create(key, body, crc32c=crc32c)


class Copy:
    """One copy of the metadata, and the brokers that use it."""

    def __init__(self, bucket: Bucket, new_writer: Callable[[], bytes]) -> None:
        self.bucket = bucket
        self.metadata = FaultyStore(SqliteStore(Path(":memory:"), clock=virtual_loop().time))
        self.new_writer = new_writer

    async def begin(self) -> Session:
        claims = SessionOpener(
            self.bucket, self.metadata, LAYOUT, broker_id="b1", new_writer=self.new_writer, now_ms=lambda: TIMESTAMP_MS
        )
        return await claims.next()

    async def die_with_a_number(self) -> None:
        """A broker takes a session number, and its process ends before it claims the number."""
        await next_session(self.metadata, LAYOUT, writer=self.new_writer())

    async def numbers_taken(self) -> int:
        held = await self.metadata.get(LAYOUT.next_session)
        return int(held.value) - 1 if held is not None else 0

    async def beginning(self) -> list[SessionId]:
        return [LAYOUT.parse_beginning(item.key) for item in (await self.metadata.range(LAYOUT.beginning)).items]


def doubled(test: Callable[[Bucket, Copy, Copy], Awaitable[None]]) -> None:
    """Runs the test with two copies of the metadata, made before either gave out a session."""

    async def main() -> None:
        bucket, nonces = Bucket(), count(1)
        older, clone = (Copy(bucket, lambda: next(nonces).to_bytes(16, "big")) for _ in range(2))
        try:
            await test(bucket, older, clone)
        finally:
            await older.metadata.close()
            await clone.metadata.close()

    virtually(main())


async def write(bucket: Bucket, session: Session, seq: int = 0) -> None:
    """Writes a segment, as the session's broker does where it has records. AlreadyExists where the session is sealed there."""
    encoded = segment_of(session.id, seq, [(ORDERS, stamped_run(0, batch_of(b"a")))], writer=session.writer)
    await bucket.create(segment_key(session.id, SegmentSeq(seq)), encoded.body)


async def is_sealed_empty(bucket: Bucket, session: int) -> bool:
    listing = await list_session(bucket, SessionId(session))
    return listing.sealed and listing.end_seq == 0


# ── a number that is passed over ────────────────────────────────────────────────────────────────────────────────────────


def test_the_session_whose_number_is_passed_over_is_sealed_before_the_next_number_is_taken() -> None:
    async def test(bucket: Bucket, older: Copy, clone: Copy) -> None:
        first = await older.begin()
        seen: list[bool] = []

        async def look() -> None:
            seen.append(await is_sealed_empty(bucket, first.id))

        bucket.before[claim_key(SessionId(2))] = look
        assert (await clone.begin()).id == 2
        assert seen == [True]

    doubled(test)


def test_the_older_broker_acknowledges_nothing_in_the_session_that_was_passed_over_and_ends_where_the_other_has_written() -> None:
    async def test(bucket: Bucket, older: Copy, clone: Copy) -> None:
        first = await older.begin()
        async with serving(bucket, session=first) as log:
            await write(bucket, await clone.begin())
            with pytest.raises(SessionFenced):
                await produce(log, batch_of(b"a record"))
        with pytest.raises(Rejected, match=r"session 2 has written .* or they exist twice"):
            await older.begin()

    doubled(test)


def test_where_neither_has_written_both_may_begin_again_until_one_of_them_writes() -> None:
    async def test(bucket: Bucket, older: Copy, clone: Copy) -> None:
        sessions = [await copy.begin() for _ in range(3) for copy in (older, clone)]
        for ended in sessions[:-1]:
            with pytest.raises(AlreadyExists):
                await write(bucket, ended)
        await write(bucket, sessions[-1])
        with pytest.raises(Rejected, match=f"session {sessions[-1].id} has written"):
            await older.begin()
        assert (await clone.begin()).id > sessions[-1].id

    doubled(test)


def test_a_copy_ends_where_the_number_that_it_passes_over_has_written_and_so_at_each_later_start() -> None:
    """The session of the other broker is not sealed: it goes on."""

    async def test(bucket: Bucket, older: Copy, clone: Copy) -> None:
        first = await older.begin()

        async def write_now() -> None:
            await write(bucket, first)

        bucket.before[claim_key(first.id)] = write_now
        with pytest.raises(Rejected, match="session 1 has written"):
            await clone.begin()
        await write(bucket, first, seq=1)
        taken = await clone.numbers_taken()
        for _ in range(3):
            with pytest.raises(Rejected, match="session 1 has written"):
                await clone.begin()
            with pytest.raises(Rejected, match="session 1 has written"):
                await check_knows_who_wrote(bucket, clone.metadata, LAYOUT)
        assert await clone.numbers_taken() == taken

    doubled(test)


def test_a_copy_ends_where_the_other_broker_writes_a_moment_before_its_session_is_sealed() -> None:
    async def test(bucket: Bucket, older: Copy, clone: Copy) -> None:
        first = await older.begin()

        async def write_now() -> None:
            await write(bucket, first)

        bucket.before[segment_key(first.id, SegmentSeq(0))] = write_now
        with pytest.raises(Rejected, match="session 1 has written"):
            await clone.begin()
        assert (await list_session(bucket, first.id)).end_seq == 1, "what was acknowledged is there"
        assert (await older.begin()).id > first.id

    doubled(test)


@pytest.mark.parametrize("act", [LOST_ANSWER, LOST_REQUEST, REFUSED])
def test_a_seal_whose_outcome_is_not_known_is_looked_for_before_the_next_number_is_taken(act: object) -> None:
    async def test(bucket: Bucket, older: Copy, clone: Copy) -> None:
        first = await older.begin()
        bucket.script("create", segment_key(first.id, SegmentSeq(0)), act)  # type: ignore[arg-type]
        assert (await clone.begin()).id == 2
        assert await is_sealed_empty(bucket, first.id)

    doubled(test)


# ── a number that a process took, and then ended ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("claimed_first", [True, False])
def test_the_number_of_a_broker_that_died_with_it_is_sealed_where_another_copy_has_claimed_it(claimed_first: bool) -> None:
    async def test(bucket: Bucket, older: Copy, clone: Copy) -> None:
        if claimed_first:
            await older.begin()
            await clone.die_with_a_number()
        else:
            await clone.die_with_a_number()
            await older.begin()
        assert (await clone.begin()).id == 2
        assert await is_sealed_empty(bucket, 1)
        assert await clone.beginning() == []

    doubled(test)


def test_a_copy_ends_where_the_number_that_a_broker_died_with_has_written() -> None:
    async def test(bucket: Bucket, older: Copy, clone: Copy) -> None:
        await clone.die_with_a_number()
        await write(bucket, await older.begin())
        for _ in range(2):
            with pytest.raises(Rejected, match="session 1 has written"):
                await clone.begin()
        assert await clone.numbers_taken() == 1

    doubled(test)


def test_a_number_whose_answer_was_lost_is_sealed_where_another_copy_has_claimed_it() -> None:
    async def test(bucket: Bucket, older: Copy, clone: Copy) -> None:
        await older.begin()
        clone.metadata.lose_answers = 1
        assert (await clone.begin()).id == 2
        assert await is_sealed_empty(bucket, 1)

    doubled(test)


def test_a_broker_that_claims_a_lower_number_later_seals_the_higher_one_of_the_other_copy() -> None:
    async def test(bucket: Bucket, older: Copy, clone: Copy) -> None:
        await clone.die_with_a_number()
        assert (await clone.begin()).id == 2
        assert (await older.begin()).id == 1
        assert await is_sealed_empty(bucket, 2)

    doubled(test)


def test_a_broker_that_claims_a_lower_number_while_the_other_copy_writes_in_a_higher_one_ends() -> None:
    async def test(bucket: Bucket, older: Copy, clone: Copy) -> None:
        await clone.die_with_a_number()
        second = await clone.begin()

        async def write_now() -> None:
            await write(bucket, second)

        bucket.before[claim_key(SessionId(1))] = write_now
        with pytest.raises(Rejected, match="session 2 has written"):
            await older.begin()

    doubled(test)


# ── brokers of the same metadata ────────────────────────────────────────────────────────────────────────────────────────


def test_brokers_of_the_same_metadata_that_begin_at_once_do_not_end_each_other() -> None:
    async def test(bucket: Bucket, ours: Copy, _: Copy) -> None:
        sessions = await asyncio.gather(*(ours.begin() for _ in range(8)))
        assert sorted(session.id for session in sessions) == list(range(1, 9))
        for session in sessions:
            await write(bucket, session)
        assert await ours.beginning() == []

    doubled(test)


def test_the_number_of_a_broker_of_the_same_metadata_that_has_yet_to_claim_it_is_left_to_it() -> None:
    async def test(bucket: Bucket, ours: Copy, _: Copy) -> None:
        async def another_begins() -> None:
            assert (await ours.begin()).id == 2
            assert await ours.beginning() == [1]

        bucket.before[claim_key(SessionId(1))] = another_begins
        slow = await ours.begin()
        assert slow.id == 1
        await write(bucket, slow)
        await write(bucket, Session(SessionId(2), bytes(16)))
        assert await ours.beginning() == []

    doubled(test)


def test_a_broker_begins_though_the_metadata_do_not_take_it_that_its_session_has_begun() -> None:
    async def test(bucket: Bucket, ours: Copy, _: Copy) -> None:
        async def fail_from_now_on() -> None:
            ours.metadata.before_transaction = fail

        async def fail() -> None:
            raise Unavailable("the store is down")

        bucket.before[claim_key(SessionId(1))] = fail_from_now_on
        assert (await ours.begin()).id == 1
        assert await ours.beginning() == [1]
        assert (await ours.begin()).id == 2
        assert await ours.beginning() == []
        assert not await is_sealed_empty(bucket, 1)

    doubled(test)


def test_a_broker_of_metadata_that_a_restore_has_replaced_seals_nothing() -> None:
    async def test(bucket: Bucket, replaced: Copy, restored: Copy) -> None:
        session = await restored.begin()

        async def restore() -> None:
            await begin_restoration(bucket, "ours", now_ms=0)

        bucket.before[claim_key(session.id)] = restore
        with pytest.raises(Rejected, match="were rebuilt from it meanwhile"):
            await replaced.begin()
        await write(bucket, session)

    doubled(test)
