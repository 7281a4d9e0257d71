"""Rules of the log that a run breaks on purpose, to show that the checker would notice.

Each replaces one function of the real code while it is in force. Production code has no switch for any of this.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any
from unittest.mock import patch

from compaction import deletion_policy
from compaction.conversion import convert_unit
from compaction.gc import collector
from compaction.maintenance import key_compaction, key_pass, maintainer, retention
from compaction.maintenance.key_compaction import KeyPassPlan
from compaction.wal.state import SessionState
from gateway.cluster import handover, session_opener, takeover
from gateway.cluster.bucket_isolation import BucketIsolationMonitor
from gateway.controller import controller
from metadata.cluster.id_allocation import next_session
from metadata.cluster.leadership import PartitionState
from metadata.errors import OutcomeUnknown, TidelogError, Unavailable
from metadata.model import LeaderEpoch, Offset, SegmentSeq, SessionId, TopicPartition
from metadata.store.keys import KeyLayout
from segments.bucket.layout import segment_key
from segments.deadline import Deadline
from segments.history import manifest_edits
from segments.log.append_result import UnverifiedRejection
from segments.log.leadership_check import LeadershipCheck
from segments.log.manifest_follower import ManifestFollower
from segments.log.session_log import PendingAppend, Released, SessionLog
from segments.object_store import store_clock
from segments.object_store.interface import Buffer, ObjectStore
from segments.partition.leader_partitions import LeaderPartitions
from segments.partition.partition_log import Appended, PartitionLog
from segments.recovery import recover as recovery
from segments.recovery.recovered_partition import RecoveredPartition
from segments.wal import segment_writer, session
from segments.wal.session import list_session
from segments.wal.session_listing import SessionListing
from tests.simulation import broken_policies
from tests.simulation.metadata_wire import MetadataWire


class BrokenRule(Enum):
    NOTHING = "nothing"
    # Producers are answered when the leader holds the batch, before the commit.
    ACKNOWLEDGED_EARLY = "acknowledged-early"
    # The writer takes whatever stands at the place of its segment for its own.
    SEAL_NOT_CHECKED = "seal-not-checked"
    # The seal is gone again once the session was read.
    SEAL_DELETED = "seal-deleted"
    # The session of a broker that is gone is read as it is found, and not ended.
    TAKEOVER_WITHOUT_SEAL = "takeover-without-seal"
    # A broker takes the number of its last session again.
    SESSION_REUSED = "session-reused"
    # A leader begins at the end offset that its predecessor had assigned, not at the one that is on the bucket.
    END_REMEMBERED = "end-remembered"
    # A leader hands a partition over before all that it took for it is committed.
    NOT_FLUSHED = "not-flushed"
    # A leader that hands a partition over names a segment that still holds records of it as the first without any.
    RELEASED_TOO_EARLY = "released-too-early"
    # A leader goes on at its old epoch when the metadata name another leader, or another epoch.
    NOT_GIVEN_UP = "not-given-up"
    # Producers whose batch is not decided within a second are answered that nothing was written.
    UNKNOWN_IS_FAILURE = "unknown-is-failure"
    # What idempotent producers sent before is forgotten when a partition is taken over.
    REPEATS_NOT_KNOWN = "repeats-not-known"
    # A leader begins with what it read ahead, without what the one before has written since.
    READ_AHEAD_IS_ALL = "read-ahead-is-all"
    # A leader still answers readers when it has sent the transaction that makes another one the leader.
    READ_WHILE_HANDED_OVER = "read-while-handed-over"
    # A leader whose lease may have ended answers readers without a look for its seal.
    SEAL_NOT_LOOKED_FOR = "seal-not-looked-for"
    # A leader that was replaced calls a gap what the next one has filled.
    GAP_REPORTED_UNPROVEN = "gap-reported-unproven"
    # A broker that says that it can't write is removed by one that has not shown that it can.
    REMOVED_WITHOUT_PROOF = "removed-without-proof"
    # A compactor marks all that it knows of a session as trimmed, compacted or not.
    TRIMMED_TOO_EARLY = "trimmed-too-early"
    # A file that no manifest names is deleted while its writer may still come to name it.
    COLLECTED_UNFENCED = "collected-unfenced"
    # Retention lets a file go when its oldest record is past retention.ms.
    EXPIRED_BY_OLDEST = "expired-by-oldest"
    # A leader that takes over begins at offset 0, whatever was deleted.
    LOG_START_FORGOTTEN = "log-start-forgotten"
    # DeleteRecords is answered before a manifest says so.
    DELETION_NOT_STORED = "deletion-not-stored"
    # Key compaction removes the newest record of a key, too.
    LAST_OF_KEY_REMOVED = "last-of-key-removed"
    # Key compaction keeps what the pass saw as the newest of a key, and removes what came behind the end of the pass.
    NEWER_FORGOTTEN = "newer-forgotten"
    # Key compaction removes records that are younger than min.compaction.lag.ms.
    LAG_IGNORED = "lag-ignored"
    # A tombstone goes with the pass behind the one that saw it.
    TOMBSTONES_REMOVED_EARLY = "tombstones-removed-early"
    # What a manifest has retired is deleted at once.
    GRACE_NOT_KEPT = "grace-not-kept"
    # Manifests do not remember what producers have sent.
    PRODUCERS_FORGOTTEN = "producers-forgotten"
    # A compactor goes by its own clock, whatever the store's says.
    CLOCK_TRUSTED = "clock-trusted"


@contextlib.contextmanager
def in_force(rule: BrokenRule) -> Iterator[None]:
    """While this lasts, `rule` is broken everywhere in this process."""
    with contextlib.ExitStack() as patches:
        for target, name, broken in _patches(rule):
            patches.enter_context(patch.object(target, name, broken))
        yield


def _patches(rule: BrokenRule) -> list[tuple[Any, str, Callable[..., Any]]]:
    match rule:
        case BrokenRule.NOTHING:
            return []
        case BrokenRule.ACKNOWLEDGED_EARLY:
            return [(PendingAppend, "committed", _acknowledged_early)]
        case BrokenRule.SEAL_NOT_CHECKED:
            return [(segment_writer, "is_segment_there", _whatever_is_there)]
        case BrokenRule.SEAL_DELETED:
            return [(recovery, "seal", _sealed_for_a_moment)]
        case BrokenRule.TAKEOVER_WITHOUT_SEAL:
            return [(recovery, "seal", _only_looked_at), (controller, "seal", _only_looked_at)]
        case BrokenRule.SESSION_REUSED:
            return _session_reused()
        case BrokenRule.NOT_FLUSHED:
            return [(handover, "release", _released_at_once)]
        case BrokenRule.RELEASED_TOO_EARLY:
            return [(handover, "release", _released_too_early())]
        case BrokenRule.NOT_GIVEN_UP:
            return [(SessionLog, "stop_leading", _only_resumed)]
        case BrokenRule.END_REMEMBERED:
            return _end_remembered()
        case BrokenRule.UNKNOWN_IS_FAILURE:
            return [(PendingAppend, "committed", _unknown_is_failure())]
        case BrokenRule.REPEATS_NOT_KNOWN:
            return [(RecoveredPartition, "log", _without_producers)]
        case BrokenRule.READ_AHEAD_IS_ALL:
            return [(takeover, "recover", _as_read_ahead(recovery.recover))]
        case BrokenRule.READ_WHILE_HANDED_OVER:
            return [(LeaderPartitions, "stop_reads", _not_stopped)]
        case BrokenRule.SEAL_NOT_LOOKED_FOR:
            return [(LeadershipCheck, "verify", _sure)]
        case BrokenRule.GAP_REPORTED_UNPROVEN:
            return [(UnverifiedRejection, "resolve", _reports_at_once)]
        case BrokenRule.REMOVED_WITHOUT_PROOF:
            return [(BucketIsolationMonitor, "_proves", _proven)]
        case BrokenRule.TRIMMED_TOO_EARLY:
            return [(SessionState, "done_to", SessionState.known_to)]
        case BrokenRule.COLLECTED_UNFENCED:
            return [(collector, "fate_of_file", _hasty(deletion_policy.fate_of_file))]
        case BrokenRule.EXPIRED_BY_OLDEST:
            return [(retention, "_expired", broken_policies.by_oldest(retention._expired))]
        case BrokenRule.LOG_START_FORGOTTEN:
            return [(RecoveredPartition, "log", broken_policies.from_zero(RecoveredPartition.log))]
        case BrokenRule.DELETION_NOT_STORED:
            return [(ManifestFollower, "delete_records", broken_policies.answered_at_once(ManifestFollower.delete_records))]
        case BrokenRule.LAST_OF_KEY_REMOVED:
            return [(key_pass, "sort_records", broken_policies.without_the_last)]
        case BrokenRule.NEWER_FORGOTTEN:
            return [
                (key_pass, "sort_records", broken_policies.without_newer_ones),
                (KeyPassPlan, "files", broken_policies.all_files),
            ]
        case BrokenRule.LAG_IGNORED:
            return [(maintainer, "plan_key_pass", broken_policies.without_lag(key_compaction.plan_key_pass))]
        case BrokenRule.TOMBSTONES_REMOVED_EARLY:
            return [(key_compaction, "_over", broken_policies.all_over)]
        case BrokenRule.GRACE_NOT_KEPT:
            names = ("due_for_collection", "collection_due")
            return [(maintainer, name, broken_policies.at_once(getattr(deletion_policy, name))) for name in names]
        case BrokenRule.PRODUCERS_FORGOTTEN:
            return [(convert_unit, "with_compacted", broken_policies.without_producers(manifest_edits.with_compacted))]
        case BrokenRule.CLOCK_TRUSTED:
            return [(store_clock, "store_time", lambda date_ms, **_: None)]


async def _acknowledged_early(self: PendingAppend, deadline: Deadline) -> Appended:
    return self.appended


async def _whatever_is_there(store: ObjectStore, written: SessionId, seq: SegmentSeq, body: Sequence[Buffer]) -> bool:
    return True


async def _sealed_for_a_moment(store: ObjectStore, sealed: SessionId, **how: Any) -> SessionListing:
    listing = await session.seal(store, sealed, **how)
    await store.delete(segment_key(sealed, listing.end_seq))
    return listing


async def _only_looked_at(store: ObjectStore, sealed: SessionId, **how: Any) -> SessionListing:
    return await list_session(store, sealed)


def _session_reused() -> list[tuple[Any, str, Callable[..., Any]]]:
    numbers: dict[str, SessionId] = {}

    async def number_of_last_time(store: MetadataWire, layout: KeyLayout, *, writer: bytes) -> SessionId:
        broker_id = store.sender().broker_id
        if broker_id not in numbers:
            numbers[broker_id] = await next_session(store, layout, writer=writer)
        return numbers[broker_id]

    async def is_ours(store: ObjectStore, key: str, writer: bytes) -> bool:
        return True

    return [(session_opener, "next_session", number_of_last_time), (session, "_is_ours", is_ours)]


async def _released_at_once(log: SessionLog, partition: TopicPartition, state: PartitionState) -> Released:
    return Released(log.writer.committed_to, {span.session for span in state.sessions})


def _released_too_early() -> Callable[..., Any]:
    release = handover.release

    async def released(log: SessionLog, partition: TopicPartition, state: PartitionState) -> Released:
        at_seq, sessions = await release(log, partition, state)
        return Released(SegmentSeq(max(0, at_seq - 1)), sessions)

    return released


def _unknown_is_failure() -> Callable[..., Any]:
    committed = PendingAppend.committed

    async def reported(self: PendingAppend, deadline: Deadline) -> Appended:
        try:
            return await committed(self, Deadline.after(min(deadline.left_s(), 1.0)))
        except OutcomeUnknown as error:
            raise Unavailable(error.message) from None

    return reported


def _without_producers(self: RecoveredPartition, leader_epoch: LeaderEpoch) -> PartitionLog:
    return PartitionLog(
        self.partition,
        leader_epoch=leader_epoch,
        log_start_offset=self.manifest.log_start_offset,
        end_offset=self.end_offset,
        producers=type(self.producers)(producers_max=1000, expiry_ms=1 << 40),
    )


def _as_read_ahead(recover: Callable[..., Any]) -> Callable[..., Any]:
    async def recovered(store: ObjectStore, spans: Any, *, begun: Any = None, **how: Any) -> Any:
        ahead = {p: copy.deepcopy(found.recovered) for p, found in (begun or {}).items() if found.continues_in(spans.get(p, ()))}
        return await recover(store, spans, begun=begun, **how) | ahead

    return recovered


def _only_resumed(self: SessionLog, partition: TopicPartition) -> None:
    self.partitions.resume(partition)


def _not_stopped(self: LeaderPartitions, partitions: Iterable[TopicPartition]) -> None:
    return


async def _sure(self: LeadershipCheck) -> None:
    return


async def _reports_at_once(self: UnverifiedRejection) -> TidelogError:
    return self.rejection


async def _proven(self: BucketIsolationMonitor, size: int) -> bool:
    return True


def _hasty(fate: Callable[..., str]) -> Callable[..., str]:
    def deleted(*args: Any) -> str:
        reported = fate(*args)
        return "delete" if reported in {"wait", "ahead"} else reported

    return deleted


def _end_remembered() -> list[tuple[Any, str, Callable[..., Any]]]:
    ends: dict[TopicPartition, Offset] = {}
    append, log = PartitionLog.append, RecoveredPartition.log

    def remembering(self: PartitionLog, *args: Any, **how: Any) -> Appended:
        appended = append(self, *args, **how)
        ends[self.partition] = self.end_offset
        return appended

    def from_memory(self: RecoveredPartition, leader_epoch: LeaderEpoch) -> PartitionLog:
        partition = log(self, leader_epoch)
        partition.end_offset = partition.high_watermark = ends.get(self.partition, partition.end_offset)
        return partition

    return [(PartitionLog, "append", remembering), (RecoveredPartition, "log", from_memory)]
