"""Plans the cluster's metadata from the evidence on the bucket: evidence goes in, keys and findings come out. Pure.

    footers ──▶ which session wrote which partition at which epoch ─┐
    manifests ▶ compacted offsets, with epochs and producers ───────┤
    claims ───▶ a session number above all that were ever used ─────┤
    mirrors ──▶ topics and their settings, deletions ───────────────┼─▶ plan ─▶ every key of the cluster
    snapshot ─▶ the same as of its revision; groups, offsets, ACLs ─┘

Segments below a trim point count where no manifest covers them (trimmed_segments.py). Committed offsets beyond the end of their
partition are set back to it (restored_offsets.py).

Footers say where records are and how far they reach; manifests say so for compacted records. Registrations of topics are the newest
of mirror and snapshot. Everything else is as in the snapshot. After a restore no partition has a leader: the last leader of each is
a sealed session without a broker, so the controller appoints new leaders, as after a failure.

Invariants: a session that holds records of a partition is in its list; epochs and session numbers that were ever used are not
assigned again, and so no producer ids either; the same bucket gives the same keys, so an interrupted restore can continue. Only the
number of the restore and that of its batch of appointments are new each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import msgspec

from compaction.audit.findings import RestoreFinding
from compaction.audit.trimmed_segments import TrimmedSession, without_manifest
from metadata.backup.restore_state import SkippedSessions, encode_skipped
from metadata.backup.snapshot import Snapshot
from metadata.cluster.id_allocation import SESSIONS_END
from metadata.cluster.leadership import PartitionState, SessionSpan
from metadata.cluster.node_ids import NODE_IDS_END
from metadata.model import LeaderEpoch, Partition, Revision, SegmentSeq, SessionId, TopicId, TopicPartition
from metadata.store.interface import OPERATIONS_MAX, Put
from metadata.store.keys import KeyLayout
from metadata.topics.topic import Topic, encode_topic
from segments.history.manifest import Manifest
from segments.wal.segment_file import SegmentFooter
from tidelog.bucket.restored_offsets import set_back
from tidelog.bucket.snapshot_contents import SnapshotContents

# Added to the highest known epoch. A leader that wrote nothing leaves no trace on the bucket, so a partition may have had higher
# epochs than footers and snapshot show, and clients that have seen one refuse lower ones. With a new leader each second this range
# lasts twelve days; and a partition can be restored two thousand times before 31 bits are used up.
EPOCHS_AHEAD: Final = 1 << 20
EPOCH_MAX: Final = 2**31 - 1
# Added to the first session number that is free on the bucket. A copy of the bucket, or a replica that lags, lacks the sessions
# that began last. Were their numbers claimed again, objects of both sessions could meet under one key, and producers under one id.
# With a session every minute this range lasts 45 days; and 29 bits have room for 8,000 restores.
SESSIONS_AHEAD: Final = 1 << 16
# Added to the highest known node id, since brokers may have first started after the snapshot. There are 2^30, to be kept small.
NODE_IDS_AHEAD: Final = 1 << 10
TRANSACTION_BYTES_MAX: Final = 1 << 20
GUARDS_MAX: Final = 2


@dataclass(slots=True)
class Stretch:
    """Offsets [start, end) that one session wrote to a partition at one epoch; `whole` if without a gap."""

    start: int
    end: int
    whole: bool = True


Stretches = dict[tuple[LeaderEpoch, SessionId], Stretch]


@dataclass(slots=True)
class FooterTally:
    """The sum of the footers of any number of sessions. The footers of one session must be added in order."""

    stretches: dict[TopicPartition, Stretches] = field(default_factory=dict)
    segments: int = 0

    def take_in(self, footer: SegmentFooter) -> None:
        """Adds the next footer of its session."""
        self.segments += 1
        for run in footer.runs:
            held = self.stretches.setdefault(run.partition, {})
            stretch = held.get((run.leader_epoch, footer.session))
            if stretch is None:
                held[run.leader_epoch, footer.session] = Stretch(run.base_offset, run.last_offset + 1)
            else:
                stretch.whole &= run.base_offset == stretch.end
                stretch.end = run.last_offset + 1

    def merge(self, other: FooterTally) -> None:
        """Adds the tally of other sessions."""
        for partition, stretches in other.stretches.items():
            self.stretches.setdefault(partition, {}).update(stretches)
        self.segments += other.segments


class MirroredTopic(NamedTuple):
    """The mirror of one topic id on the bucket."""

    name: str
    topic_id: TopicId
    # The revision of its newest registration; 0 without one.
    newest: Revision
    deleted: bool
    # The newest registration; None if it was not read.
    topic: Topic | None


@dataclass(slots=True)
class Evidence:
    """The evidence on the bucket for a restore."""

    cluster_id: str
    # Every session that was claimed or wrote, in ascending order. All are sealed.
    sessions: Sequence[SessionId] = ()
    footers: FooterTally = field(default_factory=FooterTally)
    mirrors: Sequence[MirroredTopic] = ()
    snapshot: Snapshot | None = None
    # The highest revision in the key of any mirror or snapshot.
    revision_max: int = 0
    # The number of this restore on the bucket (segments/bucket/markers.py).
    restoration: int = 0
    findings: list[RestoreFinding] = field(default_factory=list)
    # The newest manifest of each partition that has one, except of deleted topics.
    manifests: Mapping[TopicPartition, Manifest] = field(default_factory=dict)
    # Partitions whose newest manifest cannot be read.
    unreadable: Set[TopicPartition] = frozenset()
    # What is left below the trim points of the sessions.
    trimmed: list[TrimmedSession] = field(default_factory=list)


class RestoredTopic(NamedTuple):
    """A topic that the plan restores, the source of its registration (mirror or snapshot), and its number of records."""

    topic: Topic
    source: str
    records: int


@dataclass(slots=True)
class RestorePlan:
    """The keys that a restore writes, and figures and findings for the operator."""

    # Every key except the cluster's id, which is written last.
    puts: list[Put] = field(default_factory=list)
    topics: list[RestoredTopic] = field(default_factory=list)
    partitions: int = 0
    # Keys that are copied from the snapshot unchanged: groups, offsets, ACLs.
    copied: int = 0
    next_session: int = 1
    leader_epoch_max: int = 0
    # Committed offsets that were beyond the end of their partition.
    offsets_set_back: int = 0
    # Those of the findings that let offsets be given to other records: the restore needs --despite-damage.
    lacking_manifests: list[RestoreFinding] = field(default_factory=list)
    # The end offset of each partition, except where the newest manifest cannot be read.
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    findings: list[RestoreFinding] = field(default_factory=list)

    @property
    def records(self) -> int:
        """Returns the number of records of all restored topics."""
        return sum(restored.records for restored in self.topics)


def plan_restore(found: Evidence, layout: KeyLayout, held: Mapping[str, int]) -> RestorePlan:
    """Plans every key of the restored cluster.

    `held` has the counters, by key, that the new store already contains because a broker asked for a number too early.
    """
    plan = RestorePlan(findings=list(found.findings))
    contents = SnapshotContents.of(found.snapshot, layout, plan.findings)
    registered = _topics(found, contents, plan.findings)
    by_topic: dict[TopicId, dict[TopicPartition, Stretches]] = {}
    for partition in found.footers.stretches.keys() | found.manifests.keys():
        held_by = _at_or_above(_compacted_to(found, partition), found.footers.stretches.get(partition, {}))
        by_topic.setdefault(partition.topic_id, {})[partition] = held_by
    plan.lacking_manifests = _lacking_manifests(found)
    plan.findings += plan.lacking_manifests
    trimmed_epochs = _trimmed_epochs(found)
    compacted: Counter[TopicId] = Counter()
    for partition, manifest in found.manifests.items():
        compacted[partition.topic_id] += sum(file.record_count for file in manifest.files)
    for name, (topic, source) in sorted(registered.items()):
        stretches = by_topic.get(topic.id, {})
        topic = _grown(topic, stretches, plan.findings)
        plan.puts.append(Put(layout.topic(name), encode_topic(topic)))
        for number in range(topic.partition_count):
            partition = TopicPartition(topic.id, Partition(number))
            history = found.manifests.get(partition)
            if partition not in found.unreadable:
                plan.ends[partition] = _end_offset(stretches.get(partition, {}), history)
            if not found.sessions:
                continue
            used = [
                contents.epochs.get(partition, -1),
                trimmed_epochs.get(partition, -1),
                topic.first_leader_epoch - 1,
                *(epoch for epoch, _ in found.footers.stretches.get(partition, {})),
            ]
            if history is not None:
                used += (begun.leader_epoch for begun in history.epochs)
            state = _state(partition, stretches.get(partition, {}), history, max(used), found.sessions[-1], plan.findings)
            plan.leader_epoch_max = max(plan.leader_epoch_max, state.leader_epoch)
            plan.puts.append(Put(layout.partition(partition), msgspec.json.encode(state)))
        plan.partitions += topic.partition_count
        plan.topics.append(RestoredTopic(topic, source, compacted[topic.id] + sum(map(_records, stretches.values()))))
    _report_unknown(found, contents, registered, plan.findings)
    others, plan.offsets_set_back = set_back(contents.others, plan.ends, layout, plan.findings)
    plan.puts += others
    plan.copied = len(others)
    free = max(found.sessions[-1] + 1 if found.sessions else 1, contents.numbers.get(layout.next_session, 1))
    plan.next_session = max(_ahead(free, by=SESSIONS_AHEAD, end=SESSIONS_END), held.get(layout.next_session, 1))
    for key, number in (
        (layout.next_session, plan.next_session),
        (layout.next_kafka_node_id, _ahead(contents.next_node_id, by=NODE_IDS_AHEAD, end=NODE_IDS_END)),
        (layout.partition_count, plan.partitions),
        (layout.first_leader_epoch, _first_leader_epoch(found, contents, layout)),
        (layout.restoration, found.restoration),
        (layout.revision_base, max(found.revision_max, contents.numbers.get(layout.revision_base, 0))),
    ):
        plan.puts.append(Put(key, str(number).encode()))
    # A claim is never deleted. So a number that is not on the bucket was never claimed, or the objects of its session have yet to
    # arrive: those of the newest sessions, some in the middle, or some that an earlier restore has not seen either.
    skipped = SkippedSessions.between(found.sessions, SessionId(plan.next_session))
    plan.puts.append(Put(layout.skipped_sessions, encode_skipped(skipped)))
    return plan


def _first_leader_epoch(found: Evidence, contents: SnapshotContents, layout: KeyLayout) -> int:
    """Returns an epoch above those of all deleted topics, including topics deleted since the snapshot."""
    written = (epoch for stretches in found.footers.stretches.values() for epoch, _ in stretches)
    used = max(contents.numbers.get(layout.first_leader_epoch, 0), *contents.epochs.values(), *written, 0)
    return _ahead(used, by=EPOCHS_AHEAD, end=EPOCH_MAX)


def _ahead(used: int, *, by: int, end: int) -> int:
    """Returns a number `by` above `used`, or half of what is left below `end`, so that numbers never run out."""
    return used + max(0, min(by, (end - used) // 2))


def transactions(puts: Sequence[Put]) -> Iterator[Sequence[Put]]:
    """Splits the puts, in order, into parts that fit one transaction each."""
    first = size = 0
    for at, put in enumerate(puts):
        bytes_more = len(put.key) + len(put.value)
        if at > first and (at - first == OPERATIONS_MAX - GUARDS_MAX or size + bytes_more > TRANSACTION_BYTES_MAX):
            yield puts[first:at]
            first, size = at, 0
        size += bytes_more
    if first < len(puts):
        yield puts[first:]


def _compacted_to(found: Evidence, partition: TopicPartition) -> int:
    return found.manifests[partition].compacted_to if partition in found.manifests else 0


def _lacking_manifests(found: Evidence) -> list[RestoreFinding]:
    deleted = {mirror.topic_id for mirror in found.mirrors if mirror.deleted}

    def compacted_to(partition: TopicPartition) -> int | None:
        if partition.topic_id in deleted or partition in found.unreadable:
            return None
        return _compacted_to(found, partition)

    return list(without_manifest(found.trimmed, compacted_to))


def _trimmed_epochs(found: Evidence) -> dict[TopicPartition, LeaderEpoch]:
    """Returns the highest epoch of each partition with records below a trim point."""
    epochs: dict[TopicPartition, LeaderEpoch] = {}
    for session in found.trimmed:
        for partition, runs in session.runs.items():
            epochs[partition] = max(epochs.get(partition, runs.leader_epoch), runs.leader_epoch)
    return epochs


def _end_offset(stretches: Stretches, manifest: Manifest | None) -> int:
    """Returns the offset behind the last record, as the leader will find it: at least where the log starts."""
    known = [manifest.compacted_to, manifest.log_start_offset] if manifest is not None else [0]
    return max(*known, 0, *(stretch.end for stretch in stretches.values()))


def _at_or_above(offset: int, stretches: Stretches) -> Stretches:
    """Returns the stretches from `offset` on, which lie only in segments. Compacted ones below may be trimmed or not."""
    return {key: replace(stretch, start=max(stretch.start, offset)) for key, stretch in stretches.items() if stretch.end > offset}


def _records(stretches: Stretches) -> int:
    return sum(stretch.end - stretch.start for stretch in stretches.values())


# ── topics ──


def _topics(found: Evidence, contents: SnapshotContents, findings: list[RestoreFinding]) -> dict[str, tuple[Topic, str]]:
    """Returns, by name, the newest topic id that was not deleted, with its registration and the source of it."""
    candidates: dict[TopicId, tuple[Topic, str]] = {topic_id: (topic, "snapshot") for topic_id, topic in contents.topics.items()}
    for mirror in found.mirrors:
        before = candidates.get(mirror.topic_id)
        if mirror.deleted:
            candidates.pop(mirror.topic_id, None)
        elif before is None and mirror.newest <= contents.revision:
            continue  # deleted before the snapshot, which would name it
        elif mirror.topic is not None and (before is None or mirror.topic.revision > before[0].revision):
            candidates[mirror.topic_id] = (mirror.topic, "mirror")
    newest: dict[str, tuple[Topic, str]] = {}
    for topic, source in sorted(candidates.values(), key=lambda candidate: candidate[0].revision):
        if (older := newest.get(topic.name)) is not None:
            what = f"topic id {older[0].id} is left out: the topic was created again as {topic.id}"
            findings.append(RestoreFinding("note", f"topic {topic.name}", what))
        newest[topic.name] = (topic, source)
    return newest


def _grown(topic: Topic, stretches: Mapping[TopicPartition, Stretches], findings: list[RestoreFinding]) -> Topic:
    count = max((partition.partition + 1 for partition in stretches), default=0)
    if count <= topic.partition_count:
        return topic
    what = f"registered with {topic.partition_count} partitions, but records are found in {count}: it is given {count}"
    findings.append(RestoreFinding("note", f"topic {topic.name}", what))
    return msgspec.structs.replace(topic, partition_count=count)


def _report_unknown(
    found: Evidence, contents: SnapshotContents, registered: Mapping[str, tuple[Topic, str]], findings: list[RestoreFinding]
) -> None:
    """Reports records of topics that mirrors and snapshot lack, and missing topics that are not marked as deleted."""
    known = {topic.id for topic, _ in registered.values()}
    named = {mirror.topic_id for mirror in found.mirrors if mirror.deleted or mirror.topic is not None or mirror.newest}
    records: dict[TopicId, int] = {}
    for partition, stretches in found.footers.stretches.items():
        if partition.topic_id not in known | named | contents.topics.keys():
            records[partition.topic_id] = records.get(partition.topic_id, 0) + _records(stretches)
    for topic_id, count in sorted(records.items()):
        what = f"{count} records are of a topic that neither a mirror nor the snapshot names: they stay on the bucket, unread"
        findings.append(RestoreFinding("damage", f"topic id {topic_id}", what))
    _report_unmarked(found, contents, known, findings)


def _report_unmarked(found: Evidence, contents: SnapshotContents, known: Set[TopicId], findings: list[RestoreFinding]) -> None:
    """Reports each topic that is left out because the snapshot does not name it, though no mark on the bucket says it was deleted.

    The snapshot may be of a copy of the metadata that has lost: then the topic may still exist in the other one.
    """
    named = known | contents.topics.keys()
    # A deletion leaves the states of the partitions in the metadata until the topic is marked as deleted.
    with_states = {partition.topic_id for partition in contents.epochs}
    for mirror in found.mirrors:
        if mirror.deleted or mirror.topic_id in named or not 0 < mirror.newest <= contents.revision:
            continue
        count = _records_of(mirror.topic_id, found)
        was_deleted = mirror.topic_id in with_states
        what = (
            f"the snapshot does not name it (id {mirror.topic_id}), though it is not marked as deleted: it is left out, and its "
            f"{count} records stay on the bucket, unread"
        )
        if not was_deleted:
            what += "; the snapshot may be of another copy of the metadata"
        findings.append(RestoreFinding("damage" if count and not was_deleted else "note", f"topic {mirror.name}", what))


def _records_of(topic_id: TopicId, found: Evidence) -> int:
    """Returns how many records of the topic segments and files of history hold."""
    of_topic = {
        partition for partition in found.footers.stretches.keys() | found.manifests.keys() if partition.topic_id == topic_id
    }
    in_segments = sum(
        _records(_at_or_above(_compacted_to(found, partition), found.footers.stretches.get(partition, {})))
        for partition in of_topic
    )
    in_history = sum(file.record_count for p in of_topic & found.manifests.keys() for file in found.manifests[p].files)
    return in_segments + in_history


# ── partitions ──


def _state(
    partition: TopicPartition,
    stretches: Stretches,
    manifest: Manifest | None,
    used: int,
    last_session: SessionId,
    findings: list[RestoreFinding],
) -> PartitionState:
    """Returns the state of a partition: its sessions by epoch, then the last session of the bucket as its leader.

    That session is sealed and has no broker, so the controller checks one session to appoint leaders for all partitions. It wrote
    nothing at the new epoch. `used` is the highest known epoch.
    """
    end = manifest.compacted_to if manifest is not None else 0
    log_start_offset = manifest.log_start_offset if manifest is not None else 0
    spans: list[SessionSpan] = []
    for (epoch, session), stretch in sorted(stretches.items()):
        where = f"{partition} at epoch {epoch}, in session {session}"
        follows = stretch.start == end or end < stretch.start <= log_start_offset
        if not follows or not stretch.whole:
            what = f"offsets {stretch.start} to {stretch.end - 1} do not follow {end - 1} without a gap; brokers will not serve it"
            findings.append(RestoreFinding("damage", where, what))
        if spans and spans[-1].leader_epoch == epoch:
            findings.append(RestoreFinding("damage", where, f"session {spans[-1].session} wrote at this epoch as well"))
        end = stretch.end
        spans.append(SessionSpan(epoch, session))
    ahead = LeaderEpoch(_ahead(used, by=EPOCHS_AHEAD, end=EPOCH_MAX))
    leaderless = SessionSpan(ahead, last_session, SegmentSeq(0))
    return PartitionState(leader_session=last_session, leader_epoch=ahead, sessions=(*spans, leaderless))
