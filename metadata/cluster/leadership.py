"""Stores which session leads each partition, at which epoch, and in which sessions its records above the manifest lie.

The value of /{cluster}/partitions/{topic_id}/{p}, JSON in UTF-8:

    {"format_version":1,"leader_session":9,"leader_epoch":4,
     "sessions":[{"leader_epoch":2,"session":5,"released_at_seq":null},       sealed: its records end at its seal
                 {"leader_epoch":3,"session":8,"released_at_seq":117},        handed over: none of its records from seq 117 on
                 {"leader_epoch":4,"session":9,"released_at_seq":null}],      leads now
     "moving_to":null}                                                        or the session that it shall be handed over to; its
                                                                                  leader's own: closed, for its topic was deleted

    ─▶ appointed ──(controller asks)──▶ moving_to set ──(leader has flushed)──▶ handed_over: the other leads, one epoch later
           ▲                                  │
           └──── appointed, once the leader's session is sealed on the bucket ◀── (the leader dies); where it was asked to hand
                over, that session is appointed, or sealed and listed too: the request is never taken back

The states of a deleted topic are closed in the same way (`moving_to` is the leader itself). They are deleted once they are closed,
or their leaders sealed: so no record is acknowledged after the answer to the deletion of its topic.

A new leader reads the footers of exactly these sessions, in this order. The functions on states are pure; `read_all`, `write` and
`forget` act. Invariants: the epoch grows with each leader; a session that may hold records of the partition is in the
list; a change that was decided on a state that is no longer the stored one is never written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from metadata.errors import Corrupt, Fenced, OutcomeUnknown, Rejected, TidelogError, Unavailable
from metadata.model import LeaderEpoch, Revision, SegmentSeq, SessionId, TopicPartition
from metadata.store.interface import OPERATIONS_MAX, Compare, Delete, KeyValue, MetadataStore, Put
from metadata.store.keys import KeyLayout

FORMAT_VERSION = 1
# Of the first leader of a partition, where no topic of the same name was deleted before.
EPOCH_ZERO = LeaderEpoch(0)
PAGE_PARTITIONS = 1000
# Attempts of a transaction whose answer was lost; each is looked up first.
ATTEMPTS_MAX = 8
# Bound on the values of one transaction, keys not counted: stays below the limit of a request to etcd.
VALUES_BYTES_MAX = 1 << 20
# Transactions under way at once: more are no faster, and hold up the event loop for longer.
TRANSACTIONS_AT_ONCE = 4


class SessionSpan(msgspec.Struct, frozen=True, gc=False):
    """Describes one leadership: records of this epoch lie only in this session's segments."""

    leader_epoch: LeaderEpoch
    session: SessionId
    # The first segment without records of this epoch. None: they end at the session's seal, or it leads still.
    released_at_seq: SegmentSeq | None = None


class PartitionState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Holds the leader of a partition and the sessions that may hold its records."""

    format_version: int = FORMAT_VERSION
    leader_session: SessionId
    leader_epoch: LeaderEpoch
    # By ascending epoch; the last one leads.
    sessions: tuple[SessionSpan, ...]
    # The session to which the controller asks the leader to hand over; its own: the partition is to be closed.
    moving_to: SessionId | None = None

    @property
    def is_closed(self) -> bool:
        """Tells that no session leads: the topic was deleted, or the state was restored without a leader."""
        return self.sessions[-1].released_at_seq is not None


_decoder = msgspec.json.Decoder(PartitionState)


def appointed(current: PartitionState | None, session: SessionId, *, first_epoch: LeaderEpoch = EPOCH_ZERO) -> PartitionState:
    """Returns the state once `session` leads, after the leader before it was sealed: the epoch is raised by one.

    Where that leader was asked to hand over to a third session, which is sealed as well, the epoch is raised by two. The third
    session is listed between them: another copy of the metadata may know that the partition was handed over to it.

    The first leader begins at `first_epoch`, that of the topic.
    """
    if current is None:
        return PartitionState(leader_session=session, leader_epoch=first_epoch, sessions=(SessionSpan(first_epoch, session),))
    epoch, sessions = LeaderEpoch(current.leader_epoch + 1), current.sessions
    if current.moving_to not in (None, current.leader_session, session):
        assert current.moving_to is not None, "it was just compared"
        sessions = (*sessions, SessionSpan(epoch, current.moving_to))
        epoch = LeaderEpoch(epoch + 1)
    sessions = (*sessions, SessionSpan(epoch, session))
    return msgspec.structs.replace(current, leader_session=session, leader_epoch=epoch, sessions=sessions, moving_to=None)


def moving(current: PartitionState, to: SessionId | None) -> PartitionState:
    """Returns the state once the leader is asked to hand over to `to`; None takes that back, which controllers never do."""
    return msgspec.structs.replace(current, moving_to=to)


def handed_over(current: PartitionState, released_at_seq: SegmentSeq, holding: Set[SessionId]) -> PartitionState:
    """Returns the state that the leader writes when all its records of the partition lie in segments below `released_at_seq`.

    The session that the partition was moving to leads from now on; where it is the leader's own, the partition is closed. `holding`
    as in `pruned`.
    """
    assert current.moving_to is not None, "a leader hands over only when it is asked to"
    mine = SessionSpan(current.leader_epoch, current.leader_session, released_at_seq)
    before = msgspec.structs.replace(current, sessions=(*current.sessions[:-1], mine), moving_to=None)
    if current.moving_to == current.leader_session:
        return before
    return appointed(pruned(before, holding), current.moving_to)


def pruned(current: PartitionState, holding: Set[SessionId]) -> PartitionState:
    """Returns the state without the sessions that hold nothing.

    `holding`: the sessions with records above the manifest, as the leader found them on the bucket. Its own stays while it may
    write.
    """
    last = current.sessions[-1]
    kept = [span for span in current.sessions[:-1] if span.session in holding]
    if last.released_at_seq is None or last.session in holding:
        kept.append(last)
    return msgspec.structs.replace(current, sessions=tuple(kept))


async def read_all(store: MetadataStore, layout: KeyLayout) -> dict[TopicPartition, tuple[PartitionState, Revision]]:
    """Reads the state of every partition with the revision that wrote it, at one revision. Raises Corrupt, Unavailable."""
    states: dict[TopicPartition, tuple[PartitionState, Revision]] = {}
    page = await store.range(layout.partitions, limit=PAGE_PARTITIONS)
    while True:
        for item in page.items:
            states[layout.parse_partition(item.key)] = (decode_state(item), item.mod_revision)
        if not page.more:
            return states
        last = page.items[-1].key
        page = await store.range(layout.partitions, start_after=last, limit=PAGE_PARTITIONS, revision=page.revision)


class LeadershipChange(NamedTuple):
    """Holds a partition's next state, and the revision of the state that it was decided on; 0 where there was none."""

    partition: TopicPartition
    read_at: Revision
    state: PartitionState


async def write(
    store: MetadataStore, decisions: Iterable[LeadershipChange], layout: KeyLayout, *, guards: Sequence[Compare] = ()
) -> Revision:
    """Stores the changes in as few transactions as possible, some at a time, and returns the revision of the last; 0 without any.

    `guards` must hold as well, such as that the caller is still the controller. Raises Fenced where another write came first or
    a guard
    fails: read again, and decide again. After Fenced and Unavailable some whole transactions may be written; none is under way.
    """
    assert len(guards) < OPERATIONS_MAX, "no room is left for a partition"
    decided = list(decisions)
    for partition, _, state in decided:
        if state.format_version > FORMAT_VERSION:
            raise Rejected(
                f"partition {partition} was written by a newer version of Tidelog (format {state.format_version})",
                hint="Upgrade this broker.",
            )
    transactions = _transactions(_changes(decided, layout), OPERATIONS_MAX - len(guards))
    revisions, errors = [Revision(0)], list[TidelogError]()

    async def write_on() -> None:
        for transaction in transactions:
            try:
                revisions.append(await _write(store, transaction, guards))
            except TidelogError as error:
                errors.append(error)
            if errors:
                return

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(TRANSACTIONS_AT_ONCE, 1 + len(decided) // (OPERATIONS_MAX - len(guards)))):
            tasks.create_task(write_on())
    if errors:
        raise errors[0]
    return max(revisions)


async def forget(
    store: MetadataStore, partitions: Sequence[TopicPartition], layout: KeyLayout, *, guards: Sequence[Compare] = ()
) -> Revision:
    """Deletes the states of a deleted topic's partitions. Returns the revision of the last transaction, 0 without any.

    Missing states are no error. Raises Fenced where a guard fails.
    """
    revision = Revision(0)
    for first in range(0, len(partitions), OPERATIONS_MAX):
        deletes = [Delete(layout.partition(partition)) for partition in partitions[first : first + OPERATIONS_MAX]]
        result = await store.transact(guards, deletes)
        if not result.succeeded:
            raise Fenced("states of deleted topics were not deleted: this broker is no longer the controller")
        revision = result.revision
    return revision


@dataclass(frozen=True, slots=True)
class _Change:
    partition: TopicPartition
    key: str
    # The key's mod_revision that the change was decided on; 0 where there was no key.
    read_at: Revision
    value: bytes


def _changes(decisions: Iterable[LeadershipChange], layout: KeyLayout) -> Iterator[_Change]:
    for partition, read_at, state in decisions:
        yield _Change(partition, layout.partition(partition), read_at, msgspec.json.encode(state))


def _transactions(changes: Iterable[_Change], operations_max: int) -> Iterator[list[_Change]]:
    """Splits the changes, in order, into transactions."""
    chunk: list[_Change] = []
    size = 0
    for change in changes:
        if chunk and (len(chunk) == operations_max or size + len(change.value) > VALUES_BYTES_MAX):
            yield chunk
            chunk, size = [], 0
        chunk.append(change)
        size += len(change.value)
    if chunk:
        yield chunk


async def _write(store: MetadataStore, changes: Sequence[_Change], guards: Sequence[Compare]) -> Revision:
    """Writes one transaction. Where its answer is lost, one of its keys shows whether it was written: all or none are."""
    compares = [*guards, *(Compare(change.key, change.read_at) for change in changes)]
    operations = [Put(change.key, change.value) for change in changes]
    unknown: OutcomeUnknown | None = None
    for _ in range(ATTEMPTS_MAX):
        try:
            result = await store.transact(compares, operations)
        except OutcomeUnknown as error:
            unknown = error
            continue
        if result.succeeded:
            return result.revision
        if unknown is not None:
            held = await store.get(changes[0].key)
            if held is not None and held.value == changes[0].value:
                return held.mod_revision  # an earlier attempt wrote it
        raise Fenced(
            f"{changes[0].partition} and {len(changes) - 1} more were not written: another leader or controller came first",
            hint="Read the partitions again, and decide again.",
            partition=str(changes[0].partition),
            partitions=len(changes),
        )
    raise Unavailable("the leaders of partitions could not be written", partitions=len(changes)) from unknown


def decode_state(kept: KeyValue) -> PartitionState:
    """Decodes a partition's state. Raises Corrupt."""
    try:
        state = _decoder.decode(kept.value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"the state of {kept.key} cannot be read: {error}", key=kept.key, revision=kept.mod_revision) from error
    if not state.sessions or state.sessions[-1].session != state.leader_session:
        raise Corrupt(f"{kept.key} names a leader that is not its last session", key=kept.key, revision=kept.mod_revision)
    return state
