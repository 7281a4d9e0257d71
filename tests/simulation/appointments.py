"""Judges who led what, by every transaction of the metadata store and every seal on the bucket. Pure, but for the Recorder.

    the controller's key ─┐
    the brokers' keys     ├─ transaction by transaction, with its writer ─┐
    the partitions' keys ─┘                                               ├─▶ judge ─▶ violations of "appointed"
    seals and proofs, with the revision at which each landed ── runs ─────┘

What must hold: the epoch grows by one with each leader, by two past one that was to take over and was sealed; a topic that is made
again begins above every epoch at which its name was led before;
only the controller at that instant gives a partition to
somebody or asks for it; a leader is replaced by its own release, or after its session was sealed; no broker is sealed by another
while it is registered, and no session registers twice; a broker removes another only when that one has said that it can't write
to the bucket, and after it has itself written since, or as the controller, when it was asked for a partition; what is read of an
epoch was written by the session that had it, before it released it.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from metadata.cluster.broker_registry import decode_registration
from metadata.cluster.leadership import PartitionState, decode_state
from metadata.errors import Unavailable
from metadata.model import LeaderEpoch, Revision, SegmentSeq, SessionId, TopicId, TopicPartition
from metadata.store.interface import Event, KeyValue, WatchBatch
from metadata.store.keys import KeyLayout
from metadata.topics.topic import Topic, decode_topic
from segments.bucket.layout import parse_wal_key, proof_key, segment_key
from segments.wal.segment_file import SEAL_BYTES, SEAL_MAGIC, parse_seal
from tests.simulation.archive_store import ArchiveStore
from tests.simulation.bucket_reader import VisibleRun
from tests.simulation.etcd_model import EtcdModel
from tests.simulation.history_checker import Invariant, Violation


class Writer(NamedTuple):
    """Who sent a transaction."""

    broker_id: str
    # The one that it was in when it sent it.
    session: SessionId | None


# The simulation itself, which may ask for a partition to be moved without being the controller.
OPERATOR = Writer("", None)


class LandedSeal(NamedTuple):
    session: SessionId
    sealed_by: SessionId
    # Of the metadata store, when the seal came to be.
    revision: Revision


class LandedProof(NamedTuple):
    """That a broker can write to the bucket."""

    broker_id: str
    revision: Revision


def judge(
    transactions: Iterable[WatchBatch],
    writers: Mapping[Revision, Writer],
    seals: Sequence[LandedSeal],
    proofs: Iterable[LandedProof],
    runs: Iterable[VisibleRun],
    layout: KeyLayout,
) -> list[Violation]:
    """`transactions` are all of the store, in order; one without a writer was sent by somebody who was gone when it happened."""
    history = _History(layout, {seal.session: seal.revision for seal in reversed(seals)})
    for proof in proofs:
        history.proven_at[proof.broker_id].append(proof.revision)
    for transaction in transactions:
        history.take_in(transaction, writers.get(transaction.revision))
    history.judge_seals(seals)
    history.judge_runs(runs)
    return [Violation(Invariant.APPOINTED, evidence) for evidence in history.found]


@dataclass(slots=True)
class _History:
    layout: KeyLayout
    sealed_at: Mapping[SessionId, Revision]
    found: list[str] = field(default_factory=list)
    controller: str | None = None
    registered: dict[str, SessionId] = field(default_factory=dict)
    # To hand something over.
    asked: set[SessionId] = field(default_factory=set)
    # Whom the simulation itself asked for, without a batch: a controller that plans at the same time does not know of it.
    asked_by_operator: dict[TopicPartition, SessionId] = field(default_factory=dict)
    unwritable_since: dict[SessionId, Revision] = field(default_factory=dict)
    proven_at: dict[str, list[Revision]] = field(default_factory=lambda: defaultdict(list))
    gone_at: dict[SessionId, Revision] = field(default_factory=dict)
    states: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    # By topic id.
    first_epochs: dict[TopicId, LeaderEpoch] = field(default_factory=dict)
    # The ids that topics of each name have had.
    lives: dict[str, set[TopicId]] = field(default_factory=lambda: defaultdict(set))
    given: dict[tuple[TopicPartition, LeaderEpoch], SessionId] = field(default_factory=dict)
    released: dict[tuple[TopicPartition, LeaderEpoch], SegmentSeq] = field(default_factory=dict)

    def take_in(self, transaction: WatchBatch, writer: Writer | None) -> None:
        controller = self.controller  # as it was compared
        for event in transaction.events:
            if event.key == self.layout.controller:
                self.controller = event.value.decode() if event.kind == "put" else None
            elif event.key.startswith(self.layout.brokers):
                self._registration(event, writer, controller)
            elif event.key.startswith(self.layout.topics) and event.kind == "put":
                self._topic(decode_topic(_kept(event)))
            elif event.key.startswith(self.layout.partitions):
                self._partition(event, writer, controller)

    def _topic(self, topic: Topic) -> None:
        if topic.id in self.first_epochs:
            return
        earlier = self.lives[topic.name]
        highest = max((epoch for partition, epoch in self.given if partition.topic_id in earlier), default=-1)
        if topic.first_leader_epoch <= highest:
            self.found.append(
                f"topic {topic.name} is made again at epoch {topic.first_leader_epoch}, and was led at epoch {highest} before"
            )
        self.first_epochs[topic.id] = topic.first_leader_epoch
        earlier.add(topic.id)

    def _registration(self, event: Event, writer: Writer | None, controller: str | None) -> None:
        before = self.registered.pop(event.key, None)
        registration = decode_registration(_kept(event)).registration if event.kind == "put" else None
        if before is not None and (registration is None or before != registration.session):
            self.gone_at[before] = event.mod_revision
            if writer is not None and not (_name(writer) == controller and before in self.asked):
                self._removed(before, event.mod_revision, writer)
        if registration is None:
            return
        self.registered[event.key] = registration.session
        if registration.session in self.gone_at:
            self.found.append(f"session {registration.session} registers again at revision {event.mod_revision}")
        if registration.unwritable_bytes:
            self.unwritable_since.setdefault(registration.session, event.mod_revision)
        else:
            self.unwritable_since.pop(registration.session, None)

    def _removed(self, session: SessionId, revision: Revision, by: Writer) -> None:
        """By a transaction: leases that end, or are revoked, have no writer."""
        since = self.unwritable_since.get(session)
        if since is None:
            self.found.append(f"session {session} is removed at revision {revision} by {by}, and has not said that it can't write")
        elif not any(since <= at <= revision for at in self.proven_at[by.broker_id]):
            self.found.append(f"session {session} is removed at revision {revision} by {by}, which has not written since {since}")

    def _partition(self, event: Event, writer: Writer | None, controller: str | None) -> None:
        partition = self.layout.parse_partition(event.key)
        what = f"revision {event.mod_revision}, {partition} by {writer}:"
        if event.kind == "delete":
            self.states.pop(partition, None)
            self._by_controller(f"{what} it is forgotten", writer, controller)
            return
        old, new = self.states.get(partition), decode_state(_kept(event))
        self.states[partition] = new
        if new.moving_to is not None:
            self.asked.add(new.leader_session)
        if writer == OPERATOR and new.moving_to is not None:
            self.asked_by_operator[partition] = new.moving_to
        self.given[partition, new.leader_epoch] = new.leader_session
        self.released.update(
            ((partition, span.leader_epoch), span.released_at_seq) for span in new.sessions if span.released_at_seq is not None
        )
        if old is None:
            if (new.leader_epoch, len(new.sessions)) != (self.first_epochs.get(partition.topic_id, 0), 1):
                self.found.append(f"{what} it begins as {new}")
            self._by_controller(f"{what} it is given to session {new.leader_session}", writer, controller)
        elif new.leader_session == old.leader_session:
            self._same_leader(what, old, new, writer, controller)
        else:
            self._another_leader(what, partition, old, new, event.mod_revision, writer, controller)

    def _same_leader(
        self, what: str, old: PartitionState, new: PartitionState, writer: Writer | None, controller: str | None
    ) -> None:
        if new.leader_epoch != old.leader_epoch:
            self.found.append(f"{what} epoch {old.leader_epoch} becomes {new.leader_epoch}, under the same leader")
        if new.sessions == old.sessions:
            if writer != OPERATOR:
                self._by_controller(f"{what} it is asked to move to {new.moving_to}", writer, controller)
        elif writer is not None and writer.session != old.leader_session:
            self.found.append(f"{what} its list of sessions is written by another than its leader, {old.leader_session}")

    def _another_leader(
        self,
        what: str,
        partition: TopicPartition,
        old: PartitionState,
        new: PartitionState,
        revision: Revision,
        writer: Writer | None,
        controller: str | None,
    ) -> None:
        what = f"{what} session {new.leader_session} follows {old.leader_session}"
        # To whom the leader before was asked to hand over: sealed as well, and listed in an epoch of its own.
        between = [span.session for span in new.sessions if old.leader_epoch < span.leader_epoch < new.leader_epoch]
        for session in between:
            self.given[partition, LeaderEpoch(old.leader_epoch + 1)] = session
        asked = old.moving_to if old.moving_to not in (None, old.leader_session, new.leader_session) else None
        if asked not in (None, *between) and asked != self.asked_by_operator.get(partition):
            self.found.append(f"{what}, and session {asked}, to which it was to move, is not listed")
        if len(between) > 1 or new.leader_epoch != old.leader_epoch + 1 + len(between):
            self.found.append(f"{what}, and epoch {new.leader_epoch} follows {old.leader_epoch}")
        by_leader = writer is None or writer.session == old.leader_session
        if by_leader and old.moving_to == new.leader_session:
            return  # handed over: what was released is judged by the runs
        self._by_controller(what, writer, controller)
        for session in (old.leader_session, *between):
            sealed_at = self.sealed_at.get(session)
            if sealed_at is None or sealed_at >= revision:
                self.found.append(f"{what}, and session {session} was not sealed before (but at {sealed_at})")

    def _by_controller(self, what: str, writer: Writer | None, controller: str | None) -> None:
        if writer is not None and controller != _name(writer):
            self.found.append(f"{what}, while the controller was {controller}")

    def judge_seals(self, seals: Iterable[LandedSeal]) -> None:
        for session, sealed_by, revision in seals:
            if sealed_by == session:
                continue
            if session in self.registered.values() or self.gone_at.get(session, 0) > revision:
                self.found.append(f"session {session} was sealed by {sealed_by} at revision {revision}, while it was registered")

    def judge_runs(self, runs: Iterable[VisibleRun]) -> None:
        for partition, epoch, session, seq in runs:
            what = f"segment {seq} of session {session} holds epoch {epoch} of {partition}"
            holder = self.given.get((partition, epoch))
            if holder != session:
                self.found.append(f"{what}, which was given to session {holder}")
            released_at_seq = self.released.get((partition, epoch))
            if released_at_seq is not None and seq >= released_at_seq:
                self.found.append(f"{what}, which was released at {released_at_seq}")


def _name(writer: Writer) -> str:
    """As it stands in the controller's key."""
    return f"{writer.broker_id} {writer.session}"


def _kept(event: Event) -> KeyValue:
    return KeyValue(event.key, event.value, event.mod_revision, event.mod_revision, version=1)


class Recorder:
    """Writes down what `judge` needs. Its owner runs `run()` as a task, and gives `wrote` and `landed` to the callers."""

    def __init__(self, bucket: ArchiveStore, metadata: EtcdModel, layout: KeyLayout) -> None:
        self._bucket = bucket
        self._metadata = metadata
        self._layout = layout
        self._transactions: list[WatchBatch] = []
        self._writers: dict[Revision, Writer] = {}
        self._landed: dict[str, Revision] = {}
        self._proofs: list[LandedProof] = []
        self._so_far = _History(layout, {})
        self.removed_early: set[SessionId] = set()
        """Sessions whose registration somebody took away while their lease lived: only a watch tells them of it, or a renewal."""

    @property
    def revision(self) -> Revision:
        """Up to which every transaction was seen."""
        return self._transactions[-1].revision if self._transactions else Revision(0)

    async def run(self) -> None:
        while True:
            with contextlib.suppress(Unavailable):  # the store restarts
                async for transaction in self._metadata.watch("/", Revision(self.revision + 1)):
                    self._transactions.append(transaction)
                    self._so_far.take_in(transaction, None)
                    if transaction.revision not in self._metadata.ends_of_leases:
                        gone_at = self._so_far.gone_at.items()
                        self.removed_early.update(session for session, revision in gone_at if revision == transaction.revision)

    def wrote(self, revision: Revision, writer: Writer) -> None:
        """The first who names a revision has written it: one whose transaction changed nothing gets the same number later."""
        self._writers.setdefault(revision, writer)

    def landed(self, broker_id: str, key: str) -> None:
        """An object of this broker has come to be."""
        self._landed[key] = self._metadata.revision  # at this very instant, which no call can tell
        if key.startswith(proof_key("")):
            self._proofs.append(LandedProof(broker_id, self._metadata.revision))

    async def judged(self, runs: Iterable[VisibleRun]) -> list[Violation]:
        seals: list[LandedSeal] = []
        for key, revision in self._landed.items():
            parsed = parse_wal_key(key)
            if parsed is None or parsed.seq is None:
                continue
            assert key == segment_key(parsed.session, parsed.seq)
            if parsed.seq < self._bucket.trimmed_to(parsed.session):
                continue  # a seal that came late to where a compacted segment had been: it ends nothing
            for found in (await self._bucket.list(key, limit=1)).objects:  # none where a broken rule has deleted it
                if found.key == key and found.size == SEAL_BYTES:
                    body = await self._bucket.get(key)
                    assert body.startswith(SEAL_MAGIC)
                    seals.append(LandedSeal(parsed.session, parse_seal(body, key=key).sealed_by, revision))
        return judge(self._transactions, self._writers, seals, self._proofs, runs, self._layout)
