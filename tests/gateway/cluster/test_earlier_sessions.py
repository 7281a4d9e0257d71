"""A data directory that is copied while its broker runs: the copy's broker seals the session in use, or ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

import pytest

from gateway.cluster.earlier_sessions import EarlierSessions, written_unknown
from gateway.cluster.session_opener import SessionOpener
from metadata.cluster import leadership
from metadata.cluster.id_allocation import next_session
from metadata.cluster.leadership import LeadershipChange, PartitionState, SessionSpan, appointed
from metadata.errors import AlreadyExists, Rejected
from metadata.model import LeaderEpoch, Partition, Revision, SegmentSeq, SessionId, TopicId, TopicPartition
from metadata.store.interface import Put
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from metadata.topics.registry import TopicRegistry
from segments.bucket.layout import claim_key, segment_key
from segments.recovery.footer_cache import FooterCache
from segments.wal.session import Session, list_session
from tests.gateway.cluster.test_session_opener import Bucket
from tests.kit.segments.batches import TIMESTAMP_MS, batch_of, segment_of, stamped_run
from tests.kit.segments.past_sessions import SETTINGS
from tests.simulation.virtual_loop import run as virtually
from tests.simulation.virtual_loop import virtual_loop

LAYOUT = KeyLayout()


class Directory:
    """The metadata of a broker without etcd."""

    def __init__(self, bucket: Bucket, new_writer: Callable[[], bytes]) -> None:
        self.bucket = bucket
        self.metadata = SqliteStore(Path(":memory:"), clock=virtual_loop().time)
        self.new_writer = new_writer

    async def begin(self) -> Session:
        """As the broker's process does at its start."""
        footers = FooterCache(bytes_max=1 << 20)
        earlier = EarlierSessions(self.bucket, self.metadata, LAYOUT, SETTINGS, footers, now_ms=lambda: TIMESTAMP_MS)
        claims = SessionOpener(
            self.bucket,
            self.metadata,
            LAYOUT,
            broker_id="b1",
            new_writer=self.new_writer,
            now_ms=lambda: TIMESTAMP_MS,
            earlier=earlier,
        )
        return await claims.next()

    async def copied(self) -> Directory:
        copy = Directory(self.bucket, self.new_writer)
        held = (await self.metadata.range("/")).items
        await copy.metadata.transact([], [Put(item.key, item.value) for item in held])
        return copy

    async def make_topic(self) -> TopicPartition:
        topic = await TopicRegistry(self.metadata, layout=LAYOUT, now_ms=lambda: TIMESTAMP_MS).create("orders", 1)
        return TopicPartition(topic.id, Partition(0))

    async def appoint(self, partition: TopicPartition, session: Session) -> LeaderEpoch:
        held = await self.metadata.get(LAYOUT.partition(partition))
        state = appointed(leadership.decode_state(held) if held is not None else None, session.id)
        read_at = held.mod_revision if held is not None else Revision(0)
        await leadership.write(self.metadata, [LeadershipChange(partition, read_at, state)], LAYOUT)
        return state.leader_epoch

    async def noted(self) -> list[SessionId]:
        return [LAYOUT.parse_beginning(item.key) for item in (await self.metadata.range(LAYOUT.beginning)).items]

    async def write(self, partition: TopicPartition, session: Session, epoch: LeaderEpoch, *, seq: int = 0) -> None:
        """Writes a segment. AlreadyExists where the session is sealed there."""
        run = stamped_run(seq, batch_of(b"a"))
        encoded = segment_of(session.id, seq, [(partition, run)], writer=session.writer, leader_epoch=epoch)
        await self.bucket.create(segment_key(session.id, SegmentSeq(seq)), encoded.body)


def copied(test: Callable[[Bucket, Directory], Awaitable[None]]) -> None:
    async def main() -> None:
        nonces = count(1)
        bucket = Bucket()
        await test(bucket, Directory(bucket, lambda: next(nonces).to_bytes(16, "big")))

    virtually(main())


async def is_sealed(bucket: Bucket, session: Session) -> bool:
    return (await list_session(bucket, session.id)).sealed


def test_a_session_that_had_begun_and_led_nothing_when_the_directory_was_copied_is_sealed_before_the_copy_uses_its_own() -> None:
    async def test(bucket: Bucket, original: Directory) -> None:
        partition = await original.make_topic()
        first = await original.begin()
        clone = await original.copied()
        second = await clone.begin()
        await clone.write(partition, second, await clone.appoint(partition, second))
        epoch = await original.appoint(partition, first)
        with pytest.raises(AlreadyExists):
            await original.write(partition, first, epoch)
        with pytest.raises(Rejected, match=r"session 2 has written .* or they exist twice"):
            await original.begin()

    copied(test)


def test_a_copy_ends_where_the_session_in_use_has_written_what_the_copy_does_not_know_it_for_and_so_at_each_later_start() -> None:
    """The session is not sealed: its broker goes on."""

    async def test(bucket: Bucket, original: Directory) -> None:
        partition = await original.make_topic()
        first = await original.begin()
        clone = await original.copied()
        epoch = await original.appoint(partition, first)
        await original.write(partition, first, epoch)
        for _ in range(3):
            with pytest.raises(Rejected, match=r"session 1 has written .* or they exist twice"):
                await clone.begin()
        await original.write(partition, first, epoch, seq=1)
        assert (await original.begin()).id > first.id

    copied(test)


def test_a_copy_ends_where_the_session_in_use_writes_a_moment_before_it_is_sealed() -> None:
    async def test(bucket: Bucket, original: Directory) -> None:
        partition = await original.make_topic()
        first = await original.begin()
        clone = await original.copied()
        epoch = await original.appoint(partition, first)

        async def write_now() -> None:
            await original.write(partition, first, epoch)

        bucket.before[segment_key(first.id, SegmentSeq(0))] = write_now
        with pytest.raises(Rejected, match="session 1 has written"):
            await clone.begin()
        assert (await list_session(bucket, first.id)).end_seq == 1, "what was acknowledged is there"

    copied(test)


def test_a_copy_that_was_made_between_taking_and_claiming_a_number_seals_the_session_once_it_is_claimed() -> None:
    async def test(bucket: Bucket, original: Directory) -> None:
        clones: list[Directory] = []

        async def copy() -> None:
            clones.append(await original.copied())

        bucket.before[claim_key(SessionId(1))] = copy
        first = await original.begin()
        assert (await clones[0].begin()).id == 2
        assert await is_sealed(bucket, first)

    copied(test)


def test_a_copy_goes_on_from_what_the_session_in_use_wrote_where_the_copy_knows_that_it_led() -> None:
    async def test(bucket: Bucket, original: Directory) -> None:
        partition = await original.make_topic()
        first = await original.begin()
        epoch = await original.appoint(partition, first)
        clone = await original.copied()
        await original.write(partition, first, epoch)
        assert (await clone.begin()).id == 2
        assert await is_sealed(bucket, first)
        assert await clone.noted() == [2]

    copied(test)


def test_a_broker_that_was_killed_before_it_claimed_its_number_starts_again_and_notes_its_own_session_alone() -> None:
    async def test(bucket: Bucket, ours: Directory) -> None:
        partition = await ours.make_topic()
        for _ in range(3):
            await next_session(ours.metadata, LAYOUT, writer=ours.new_writer())  # killed before the claim
            session = await ours.begin()
            await ours.write(partition, session, await ours.appoint(partition, session))
        last = await ours.begin()
        unclaimed = [1, 3, 5]
        assert await ours.noted() == [*unclaimed, last.id]

    copied(test)


PARTITION = TopicPartition(TopicId("1" * 32), Partition(0))
LED_SINCE = PartitionState(
    leader_session=SessionId(7),
    leader_epoch=LeaderEpoch(4),
    sessions=(SessionSpan(LeaderEpoch(3), SessionId(5)), SessionSpan(LeaderEpoch(4), SessionId(7))),
)


@pytest.mark.parametrize(
    ("session", "epoch", "state", "has_topic", "is_unknown"),
    [
        (7, 4, LED_SINCE, True, False),
        (5, 3, LED_SINCE, True, False),
        (4, 2, LED_SINCE, True, False),
        (7, 5, LED_SINCE, True, True),
        (6, 4, LED_SINCE, True, True),
        (6, 3, LED_SINCE, True, True),
        (7, 0, None, True, True),
        (7, 0, None, False, False),
        (7, 9, LED_SINCE, False, True),
    ],
)
def test_a_session_wrote_unknown_where_its_epoch_is_yet_to_begin_or_was_given_to_another(
    session: int, epoch: int, state: PartitionState | None, has_topic: bool, is_unknown: bool
) -> None:
    states = {PARTITION: state} if state is not None else {}
    topics = {PARTITION.topic_id} if has_topic else set()
    found = written_unknown(SessionId(session), {PARTITION: LeaderEpoch(epoch)}, states, topics)
    assert found == ([PARTITION] if is_unknown else [])


def test_an_unreadable_leadership_state_is_no_sign_of_unknown_writes() -> None:
    wrote = {PARTITION: LeaderEpoch(0)}
    assert written_unknown(SessionId(7), wrote, {PARTITION: None}, {PARTITION.topic_id}) == []
