"""Which session leads each partition, at which epoch, and in which sessions its records lie since it was last compacted.

The value of /{cluster}/partitions/{topic_id}/{p}, JSON in UTF-8:

    {"format_version":1,"leader_session":9,"leader_epoch":4,
     "sessions":[{"leader_epoch":2,"session":5,"released_at_seq":null},       sealed: its records end at its seal
                 {"leader_epoch":3,"session":8,"released_at_seq":117},        handed over: none of its records from seq 117 on
                 {"leader_epoch":4,"session":9,"released_at_seq":null}]}      leads now

A new leader reads the footers of exactly these sessions, in this order. `next_state` decides, `lead` and `forget` act.
Invariants: the epoch grows by one with each leader; a session that may hold records of the partition is in the list; what was
decided on a state that is no longer the stored one is never written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import msgspec

from metadata.errors import Corrupt, Fenced, OutcomeUnknown, Rejected, Unavailable
from metadata.etcd_layout import EtcdLayout
from metadata.model import LeaderEpoch, Partition, Revision, SegmentSeq, SessionId, TopicId, TopicPartition
from metadata.store import OPERATIONS_MAX, Compare, Delete, KeyValue, MetadataStore, Put

FORMAT_VERSION = 1
PAGE_PARTITIONS = 1000
ATTEMPTS_MAX = 8
"""Times that a transaction whose answer was lost is looked up and tried again."""
VALUES_BYTES_MAX = 1 << 20
"""Values of one transaction together, keys not counted: stays below what a request to etcd may have."""


class SessionSpan(msgspec.Struct, frozen=True):
    """One leadership: records of this epoch lie in this session's segments, and nowhere else."""

    leader_epoch: LeaderEpoch
    session: SessionId
    released_at_seq: SegmentSeq | None = None
    """The segment from which on the session holds no record of this epoch. None: up to its seal, or it leads still."""


class PartitionState(msgspec.Struct, frozen=True, kw_only=True):
    format_version: int = FORMAT_VERSION
    leader_session: SessionId
    leader_epoch: LeaderEpoch
    sessions: tuple[SessionSpan, ...]
    """By ascending epoch; the last one leads."""


_decoder = msgspec.json.Decoder(PartitionState)


def next_state(current: PartitionState | None, session: SessionId, holding: Set[SessionId] | None) -> PartitionState:
    """The state once `session` leads: the epoch raised by one, and the sessions that hold nothing left out. Pure.

    `holding` are the sessions that hold, or may still write, records of the partition above `compacted_to`. None: not known,
    so all are kept. `session` itself is always kept: what it wrote at an earlier epoch is there still.
    """
    epoch, before = (LeaderEpoch(current.leader_epoch + 1), current.sessions) if current else (LeaderEpoch(0), ())
    kept = (span for span in before if holding is None or span.session in holding or span.session == session)
    return PartitionState(leader_session=session, leader_epoch=epoch, sessions=(*kept, SessionSpan(epoch, session)))


async def read_all(store: MetadataStore, layout: EtcdLayout | None = None) -> dict[TopicPartition, tuple[PartitionState, Revision]]:
    """Every partition's state with the revision that wrote it, all read at one revision. Raises Corrupt, Unavailable."""
    layout = layout or EtcdLayout()
    states: dict[TopicPartition, tuple[PartitionState, Revision]] = {}
    page = await store.range(layout.partitions, limit=PAGE_PARTITIONS)
    while True:
        for item in page.items:
            states[layout.parse_partition(item.key)] = (_decode(item), item.mod_revision)
        if not page.more:
            return states
        last = page.items[-1].key
        page = await store.range(layout.partitions, start_after=last, limit=PAGE_PARTITIONS, revision=page.revision)


async def lead(
    store: MetadataStore,
    session: SessionId,
    partitions: Mapping[TopicPartition, tuple[PartitionState, Revision] | None],
    holding: Mapping[TopicPartition, Set[SessionId]],
    *,
    layout: EtcdLayout | None = None,
    guards: Sequence[Compare] = (),
) -> dict[TopicPartition, PartitionState]:
    """Makes `session` the leader of `partitions`, given with their state as read_all answered it (None: they have none).

    The caller has seen to it that the leaders so far write no more: sealed, or released. `holding` says per partition which
    sessions to keep in the list (next_state); a partition that is not named keeps them all. `guards` must hold as well, such
    as that the caller is the controller still.

    Raises Fenced where another came first, or a guard fails: read again, and decide again. It, and Unavailable, may come when
    some of the partitions are written already, a transaction at a time in the order given: to lead them again costs an epoch.
    """
    assert len(guards) < OPERATIONS_MAX, "no room is left for a partition"
    layout = layout or EtcdLayout()
    changes = []
    for partition, current in partitions.items():
        state, revision = current or (None, Revision(0))
        if state is not None and state.format_version > FORMAT_VERSION:
            raise Rejected(
                f"partition {partition} was written by a newer version of Tidelog (format {state.format_version})",
                hint="Upgrade this broker.",
            )
        new = next_state(state, session, holding.get(partition))
        changes.append(_Change(partition, layout.partition(partition), revision, new, msgspec.json.encode(new)))
    for transaction in _transactions(changes, OPERATIONS_MAX - len(guards)):
        await _write(store, transaction, guards)
    return {change.partition: change.state for change in changes}


async def forget(store: MetadataStore, topic_id: TopicId, partition_count: int, layout: EtcdLayout | None = None) -> None:
    """Deletes the states of a deleted topic's partitions, OPERATIONS_MAX at a time. No error where there are none."""
    layout = layout or EtcdLayout()
    for first in range(0, partition_count, OPERATIONS_MAX):
        partitions = range(first, min(first + OPERATIONS_MAX, partition_count))
        await store.transact([], [Delete(layout.partition(TopicPartition(topic_id, Partition(p)))) for p in partitions])


@dataclass(frozen=True, slots=True)
class _Change:
    partition: TopicPartition
    key: str
    read_at: Revision
    """The key's mod_revision that the change was decided on; 0 where there was no key."""
    state: PartitionState
    value: bytes


def _transactions(changes: Iterable[_Change], operations_max: int) -> Iterator[list[_Change]]:
    """The changes in order, in as many as fit one transaction."""
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


async def _write(store: MetadataStore, changes: Sequence[_Change], guards: Sequence[Compare]) -> None:
    """One transaction. Where its answer is lost, a look at one of its keys tells whether it happened: all or none did."""
    compares = [*guards, *(Compare(change.key, change.read_at) for change in changes)]
    operations = [Put(change.key, change.value) for change in changes]
    unknown: OutcomeUnknown | None = None
    for _ in range(ATTEMPTS_MAX):
        try:
            if (await store.transact(compares, operations)).succeeded:
                return
        except OutcomeUnknown as error:
            unknown = error
            continue
        if unknown is not None:
            held = await store.get(changes[0].key)
            if held is not None and held.value == changes[0].value:
                return  # an earlier attempt wrote it: this session at this epoch is nobody else's
        raise Fenced(
            f"{changes[0].partition} and {len(changes) - 1} more were not taken over: another leader or controller came first",
            hint="Read the partitions again, and decide again.",
            partition=str(changes[0].partition),
            partitions=len(changes),
        )
    raise Unavailable("the partitions' leader could not be written", partitions=len(changes)) from unknown


def _decode(kept: KeyValue) -> PartitionState:
    try:
        state = _decoder.decode(kept.value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"the state of {kept.key} cannot be read: {error}", key=kept.key, revision=kept.mod_revision) from error
    if not state.sessions or state.sessions[-1].session != state.leader_session:
        raise Corrupt(f"{kept.key} names a leader that is not its last session", key=kept.key, revision=kept.mod_revision)
    return state
