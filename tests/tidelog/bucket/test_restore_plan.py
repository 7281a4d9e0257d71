"""The planner of a restore: from what lies on a bucket to the keys of the cluster, without a bucket."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from compaction.audit.trimmed_segments import TrimmedSession
from metadata.backup.snapshot import Snapshot, SnapshotEntry, SnapshotHeader
from metadata.cluster.id_allocation import SESSIONS_END
from metadata.cluster.leadership import PartitionState, SessionSpan, appointed
from metadata.cluster.node_ids import NODE_IDS_END
from metadata.groups.offsets import CommittedOffset, decode_offset, encode_offset
from metadata.model import LeaderEpoch, Offset, Partition, Revision, SegmentSeq, SessionId, TopicId, TopicPartition
from metadata.store.interface import OPERATIONS_MAX, KeyValue, Put
from metadata.store.keys import KeyLayout
from metadata.topics.topic import Topic, decode_topic, encode_topic
from segments.history.manifest import Manifest
from segments.wal.segment_file import SegmentFooter, encode_segment
from tests.kit.segments.batches import sequenced_batch, stamped_run
from tests.kit.segments.manifests import compacted_to
from tidelog.bucket.restore_plan import (
    EPOCH_MAX,
    EPOCHS_AHEAD,
    NODE_IDS_AHEAD,
    SESSIONS_AHEAD,
    Evidence,
    FooterTally,
    MirroredTopic,
    RestorePlan,
    plan_restore,
    transactions,
)

LAYOUT = KeyLayout()
ORDERS, BILLS = TopicId("a" * 32), TopicId("b" * 32)


def topic(name: str = "orders", topic_id: TopicId = ORDERS, *, partitions: int = 1, revision: int = 5) -> Topic:
    return Topic(id=topic_id, name=name, partition_count=partitions, settings={}, created_at_ms=0, revision=Revision(revision))


def mirrored(registered: Topic, *, deleted: bool = False) -> MirroredTopic:
    return MirroredTopic(registered.name, registered.id, registered.revision, deleted, None if deleted else registered)


def snapshot(*entries: tuple[str, bytes, int], revision: int = 100) -> Snapshot:
    header = SnapshotHeader("cluster", Revision(revision), 0)
    return Snapshot(header, tuple(SnapshotEntry(key, value, Revision(at)) for key, value, at in entries))


def registration(registered: Topic) -> tuple[str, bytes, int]:
    return f"topics/{registered.name}", encode_topic(registered), registered.revision


def footer(session: int, seq: int, *runs: tuple[int, int, int], topic_id: TopicId = ORDERS) -> SegmentFooter:
    """`runs`: partition, leader epoch, base offset; each of two records."""
    return encode_segment(
        session=SessionId(session),
        seq=SegmentSeq(seq),
        writer=bytes(16),
        committed_to=SegmentSeq(0),
        written_at_ms=0,
        partitions=[
            (
                TopicPartition(topic_id, Partition(partition)),
                LeaderEpoch(epoch),
                stamped_run(base, sequenced_batch(1, base, b"x", b"y"), leader_epoch=epoch),
            )
            for partition, epoch, base in runs
        ],
    ).footer


def found(
    *footers: SegmentFooter, mirrors: Iterable[MirroredTopic] = (), of: Snapshot | None = None, sessions: Iterable[int] = ()
) -> Evidence:
    tally = FooterTally()
    for each in footers:
        tally.take_in(each)
    claimed = sorted({SessionId(number) for number in sessions} | {each.session for each in footers})
    return Evidence("cluster", claimed, tally, list(mirrors), of)


def planned(evidence: Evidence) -> RestorePlan:
    return plan_restore(evidence, LAYOUT, {})


def value(plan: RestorePlan, key: str) -> bytes:
    (put,) = [put for put in plan.puts if put.key == key]
    return put.value


def state(plan: RestorePlan, partition: int = 0, topic_id: TopicId = ORDERS) -> PartitionState:
    return msgspec.json.decode(value(plan, LAYOUT.partition(TopicPartition(topic_id, Partition(partition)))), type=PartitionState)


def what(plan: RestorePlan) -> list[tuple[str, str]]:
    return [(finding.severity, finding.where) for finding in plan.findings]


# ── partitions ──


def test_a_partition_names_every_session_that_wrote_to_it_by_epoch_and_not_by_number() -> None:
    """Session 9 handed the partition over to 4, and died later."""
    plan = planned(found(footer(4, 0, (0, 3, 4)), footer(9, 0, (0, 1, 0)), footer(9, 1, (0, 1, 2)), mirrors=[mirrored(topic())]))
    spans = state(plan).sessions
    assert [(span.leader_epoch, span.session, span.released_at_seq) for span in spans[:-1]] == [(1, 9, None), (3, 4, None)]
    assert plan.findings == []
    assert plan.records == 6


def test_restored_partitions_have_no_leader_and_their_next_epoch_was_never_used() -> None:
    """The last session of the bucket stands for the lost leaders: it is sealed, has no broker, and wrote nothing at that epoch."""
    plan = planned(found(footer(4, 0, (0, 3, 0)), mirrors=[mirrored(topic(partitions=2))], sessions=[12]))
    for partition in (0, 1):
        held = state(plan, partition)
        assert held.leader_session == 12
        assert held.sessions[-1] == SessionSpan(held.leader_epoch, SessionId(12), SegmentSeq(0))
        assert held.moving_to is None
    assert state(plan).leader_epoch == 3 + EPOCHS_AHEAD
    assert appointed(state(plan), SessionId(13)).leader_epoch == 4 + EPOCHS_AHEAD


def test_an_epoch_that_left_no_record_counts_where_the_snapshot_knows_it() -> None:
    known = appointed(appointed(appointed(None, SessionId(1)), SessionId(2)), SessionId(3))
    of = snapshot(registration(topic()), (f"partitions/{ORDERS}/0", msgspec.json.encode(known), 50))
    assert state(planned(found(footer(1, 0, (0, 0, 0)), of=of))).leader_epoch == 2 + EPOCHS_AHEAD


def test_epochs_never_run_out() -> None:
    plan = planned(found(footer(1, 0, (0, EPOCH_MAX - 10, 0)), mirrors=[mirrored(topic())]))
    assert EPOCH_MAX - 10 < state(plan).leader_epoch < EPOCH_MAX


def test_missing_and_duplicate_offsets_are_reported_as_damage() -> None:
    gap = planned(found(footer(1, 0, (0, 0, 0)), footer(2, 0, (0, 1, 4)), mirrors=[mirrored(topic())]))
    within = planned(found(footer(1, 0, (0, 0, 0)), footer(1, 1, (0, 0, 6)), mirrors=[mirrored(topic())]))
    doubled = planned(found(footer(1, 0, (0, 0, 0)), footer(2, 0, (0, 0, 0)), mirrors=[mirrored(topic())]))
    assert what(gap) == [("damage", f"{ORDERS}/0 at epoch 1, in session 2")]
    assert what(within) == [("damage", f"{ORDERS}/0 at epoch 0, in session 1")]
    assert what(doubled) == [("damage", f"{ORDERS}/0 at epoch 0, in session 2")] * 2


@given(st.data())
def test_whatever_the_history_its_sessions_epochs_and_ends_are_found(data: st.DataObject) -> None:
    """Partitions change hands between sessions at random, and every session writes what it leads, in segments of its own."""
    partitions = data.draw(st.integers(1, 3))
    leaders = {p: (data.draw(st.integers(1, 3)), 0) for p in range(partitions)}
    ends, seqs = dict.fromkeys(range(partitions), 0), dict.fromkeys(range(1, 9), 0)
    wrote: dict[int, list[tuple[int, int]]] = {p: [] for p in range(partitions)}
    footers = []
    for _ in range(data.draw(st.integers(0, 12))):
        p = data.draw(st.integers(0, partitions - 1))
        session, epoch = leaders[p]
        if data.draw(st.booleans()):
            leaders[p] = (data.draw(st.integers(1, 8)), epoch + data.draw(st.integers(1, 3)))
            continue
        footers.append(footer(session, seqs[session], (p, epoch, ends[p])))
        seqs[session] += 1
        ends[p] += 2
        if (epoch, session) not in wrote[p]:
            wrote[p].append((epoch, session))
    footers.sort(key=lambda each: (each.session, each.seq))
    plan = planned(found(*footers, mirrors=[mirrored(topic(partitions=partitions))], sessions=range(1, 9)))
    assert plan.findings == []
    assert plan.records == sum(ends.values())
    for p in range(partitions):
        held = state(plan, p)
        assert [(span.leader_epoch, span.session) for span in held.sessions[:-1]] == wrote[p]
        assert held.leader_epoch > leaders[p][1]


# ── topics ──


def test_the_newest_registration_wins_whether_mirror_or_snapshot() -> None:
    older, newer = topic(revision=90), topic(partitions=4, revision=95)
    by_mirror = planned(found(mirrors=[mirrored(newer)], of=snapshot(registration(older), revision=92), sessions=[1]))
    by_snapshot = planned(found(mirrors=[mirrored(older)], of=snapshot(registration(newer)), sessions=[1]))
    assert [(each.topic.partition_count, each.source) for each in by_mirror.topics] == [(4, "mirror")]
    assert [(each.topic.partition_count, each.source) for each in by_snapshot.topics] == [(4, "snapshot")]
    assert by_mirror.findings == by_snapshot.findings == []


def test_a_deleted_topic_stays_deleted_though_an_older_snapshot_names_it() -> None:
    plan = planned(found(footer(1, 0, (0, 0, 0)), mirrors=[mirrored(topic(), deleted=True)], of=snapshot(registration(topic()))))
    assert (plan.topics, plan.findings) == ([], [])
    assert not [put for put in plan.puts if put.key.startswith((LAYOUT.topics, LAYOUT.partitions))]


def test_a_topic_that_a_later_snapshot_omits_was_deleted_even_without_a_marker() -> None:
    gone = MirroredTopic("orders", ORDERS, Revision(5), False, None)
    left = (f"partitions/{ORDERS}/0", msgspec.json.encode(appointed(None, SessionId(1))), 7)
    plan = planned(found(footer(1, 0, (0, 0, 0)), mirrors=[gone], of=snapshot(left, revision=100)))
    assert (plan.topics, what(plan)) == ([], [("note", "topic orders")])


def test_a_topic_without_records_that_the_snapshot_does_not_name_is_noted() -> None:
    made_by_the_other_copy = MirroredTopic("orders", ORDERS, Revision(5), False, None)
    plan = planned(found(mirrors=[made_by_the_other_copy], of=snapshot(revision=100)))
    assert what(plan) == [("note", "topic orders")]
    assert "may be of another copy of the metadata" in plan.findings[0].what


def test_records_of_a_topic_that_the_snapshot_omits_and_that_was_not_deleted_are_damage() -> None:
    made_by_the_other_copy = MirroredTopic("orders", ORDERS, Revision(5), False, None)
    plan = planned(found(footer(1, 0, (0, 0, 0)), mirrors=[made_by_the_other_copy], of=snapshot(revision=100)))
    assert what(plan) == [("damage", "topic orders")]
    assert "2 records" in plan.findings[0].what
    assert ORDERS in plan.findings[0].what


def test_of_two_lives_of_a_name_the_later_one_counts() -> None:
    again = topic(topic_id=BILLS, revision=9)
    plan = planned(found(footer(1, 0, (0, 0, 0)), mirrors=[mirrored(topic()), mirrored(again)]))
    assert [each.topic.id for each in plan.topics] == [BILLS]
    assert what(plan) == [("note", "topic orders")]


def test_records_of_a_topic_id_without_a_name_are_reported_as_damage() -> None:
    plan = planned(found(footer(1, 0, (0, 0, 0)), footer(1, 1, (3, 0, 0), topic_id=BILLS), mirrors=[mirrored(topic())]))
    assert what(plan) == [("damage", f"topic id {BILLS}")]
    assert "2 records" in plan.findings[0].what


def test_a_topic_has_at_least_as_many_partitions_as_hold_records() -> None:
    plan = planned(found(footer(1, 0, (2, 0, 0)), mirrors=[mirrored(topic(partitions=1))]))
    assert [each.topic.partition_count for each in plan.topics] == [3]
    assert what(plan) == [("note", "topic orders")]
    assert value(plan, LAYOUT.partition_count) == b"3"


def test_a_restored_registration_is_one_that_brokers_read() -> None:
    plan = planned(found(mirrors=[mirrored(topic(partitions=2))], sessions=[1]))
    stored = KeyValue(LAYOUT.topic("orders"), value(plan, LAYOUT.topic("orders")), Revision(1), Revision(5), 1)
    assert decode_topic(stored) == topic(partitions=2)


# ── numbers ──


def test_sessions_begin_far_above_every_claim_and_above_the_snapshots_counter() -> None:
    """A replica that lags lacks the newest sessions, and their numbers must not be claimed again."""
    assert planned(found(sessions=[3, 17])).next_session == 18 + SESSIONS_AHEAD
    assert planned(found(sessions=[3], of=snapshot(("next_session", b"40", 1)))).next_session == 40 + SESSIONS_AHEAD
    assert planned(found()).next_session == 1 + SESSIONS_AHEAD


def test_the_session_numbers_that_were_not_seen_are_noted() -> None:
    assert value(planned(found(sessions=[1, 2])), LAYOUT.skipped_sessions) == b"3-%d" % (3 + SESSIONS_AHEAD)
    in_the_middle = b"1-3,4-17,18-%d" % (18 + SESSIONS_AHEAD)
    assert value(planned(found(sessions=[3, 17])), LAYOUT.skipped_sessions) == in_the_middle
    after_one = snapshot(("next_session", b"40", 1), ("skipped_sessions", b"5-30", 1))
    assert value(planned(found(sessions=[1, 2, 3], of=after_one)), LAYOUT.skipped_sessions) == b"4-%d" % (40 + SESSIONS_AHEAD), (
        "those of 4 to 39 have yet to arrive"
    )
    of_two_restores = b"4-65540,65541-%d" % (65541 + SESSIONS_AHEAD)
    assert value(planned(found(sessions=[1, 2, 3, 65540])), LAYOUT.skipped_sessions) == of_two_restores, (
        "those that the first restore has not seen may arrive after the second"
    )


def test_a_restore_that_goes_on_after_an_interruption_leaves_no_second_space_of_sessions() -> None:
    evidence = found(sessions=[3])
    begun = {LAYOUT.next_session: planned(evidence).next_session}
    assert plan_restore(evidence, LAYOUT, begun).next_session == begun[LAYOUT.next_session]
    assert plan_restore(evidence, LAYOUT, {LAYOUT.next_session: 10**6}).next_session == 10**6


def test_session_numbers_never_run_out() -> None:
    next_session = planned(found(sessions=[SESSIONS_END - 10])).next_session
    assert SESSIONS_END - 10 < next_session < SESSIONS_END


def test_brokers_keep_their_node_ids_and_new_ones_begin_far_above_those_of_the_snapshot() -> None:
    def next_node_id(*entries: tuple[str, bytes, int]) -> int:
        return int(value(planned(found(of=snapshot(*entries))), LAYOUT.next_kafka_node_id))

    held = [("kafka_node_ids/b-1", b"4", 1), ("kafka_node_ids/b-2", b"0", 1)]
    plan = planned(found(of=snapshot(*held)))
    assert value(plan, LAYOUT.kafka_node_id("b-1")) == b"4"
    assert value(plan, LAYOUT.kafka_node_id("b-2")) == b"0"
    assert next_node_id(*held) == 5 + NODE_IDS_AHEAD
    assert next_node_id(*held, ("next_kafka_node_id", b"9", 1)) == 9 + NODE_IDS_AHEAD
    assert int(value(planned(found()), LAYOUT.next_kafka_node_id)) == NODE_IDS_AHEAD, "brokers may have had some; none is known"


def test_new_topics_begin_their_leader_epochs_far_above_those_of_every_topic_that_was_deleted() -> None:
    def first_epoch(evidence: Evidence) -> int:
        return int(value(planned(evidence), LAYOUT.first_leader_epoch))

    gone = mirrored(topic(), deleted=True)
    assert first_epoch(found(footer(1, 0, (0, 7, 0)), mirrors=[gone])) == 7 + EPOCHS_AHEAD, "as its footers say"
    known = msgspec.json.encode(appointed(None, SessionId(1), first_epoch=LeaderEpoch(30)))
    assert first_epoch(found(of=snapshot((f"partitions/{ORDERS}/0", known, 1)), mirrors=[gone])) == 30 + EPOCHS_AHEAD
    assert first_epoch(found(of=snapshot(("first_leader_epoch", b"41", 1)))) == 41 + EPOCHS_AHEAD


def test_a_topic_that_wrote_nothing_goes_on_above_its_first_leader_epoch() -> None:
    begun = msgspec.structs.replace(topic(), first_leader_epoch=LeaderEpoch(50))
    assert state(planned(found(mirrors=[mirrored(begun)], sessions=[1]))).leader_epoch >= 50 + EPOCHS_AHEAD - 1


def test_node_ids_never_leave_31_bits() -> None:
    plan = planned(found(of=snapshot(("next_kafka_node_id", b"%d" % (NODE_IDS_END - 10), 1))))
    assert NODE_IDS_END - 10 < int(value(plan, LAYOUT.next_kafka_node_id)) < NODE_IDS_END


def test_revisions_go_on_above_all_that_lie_on_the_bucket() -> None:
    evidence = found(of=snapshot(("revision_base", b"7000", 1)))
    evidence.revision_max = 9000
    assert value(planned(evidence), LAYOUT.revision_base) == b"9000"


# ── all else ──


def test_every_other_key_is_copied_from_the_snapshot_as_it_was() -> None:
    others = {"groups/billing": b"g", f"offsets/billing/{ORDERS}/0": b"41", "acls/1": b"a", "users/u": b"u"}
    others["kafka_node_ids/b-1"] = b"0"
    own = [
        ("cluster_id", b"x", 1),
        ("restoration", b"6", 1),
        ("restoring", b"y", 1),
        ("skipped_sessions", b"5-90", 1),
        ("controller", b"z", 1),
        ("beginning/0000000000000007", b"z", 1),
        ("brokers/b1", b"w", 1),
        ("partition_count", b"9", 1),
    ]
    evidence = found(of=snapshot(*own, *((key, text, 1) for key, text in others.items())))
    evidence.restoration = 7
    plan = planned(evidence)
    assert {put.key.removeprefix(LAYOUT.root): put.value for put in plan.puts} == others | {
        "next_session": str(1 + SESSIONS_AHEAD).encode(),
        "next_kafka_node_id": str(1 + NODE_IDS_AHEAD).encode(),
        "partition_count": b"0",
        "first_leader_epoch": str(EPOCHS_AHEAD).encode(),
        "revision_base": b"0",
        "restoration": b"7",
        "skipped_sessions": b"1-%d" % (1 + SESSIONS_AHEAD),
    }
    assert plan.copied == len(others)


def test_damaged_values_of_the_snapshot_are_noted_and_omitted() -> None:
    of = snapshot(
        ("topics/orders", b"{", 1), (f"partitions/{ORDERS}/0", b"{", 1), ("partitions/x", b"{}", 1), ("next_session", b"-", 1)
    )
    plan = planned(found(of=of))
    assert [severity for severity, _ in what(plan)] == ["note"] * 4
    assert plan.topics == []


def test_the_same_bucket_gives_the_same_keys() -> None:
    evidence = found(footer(1, 0, (0, 0, 0)), mirrors=[mirrored(topic(partitions=3))])
    assert planned(evidence).puts == planned(evidence).puts
    assert len({put.key for put in planned(evidence).puts}) == len(planned(evidence).puts)


# ── transactions ──


@given(st.lists(st.integers(0, 600_000), max_size=400))
def test_puts_leave_in_order_in_transactions_that_every_store_takes(sizes: list[int]) -> None:
    puts = [Put(f"/tidelog/{number}", b"\0" * size) for number, size in enumerate(sizes[:40])] + [
        Put(f"/tidelog/small/{number}", b"") for number in range(len(sizes))
    ]
    chunks = list(transactions(puts))
    assert [put for chunk in chunks for put in chunk] == puts
    for chunk in chunks:
        assert 0 < len(chunk) <= OPERATIONS_MAX - 2
        assert len(chunk) == 1 or sum(len(put.key) + len(put.value) for put in chunk) <= 1 << 20


# ── what was trimmed, and what is beyond the end ──


def trimmed(*runs: tuple[int, int, int], session: int = 2) -> TrimmedSession:
    """Segments below a trim point; each has one run: partition, leader epoch, base offset, of two records."""
    held = TrimmedSession(SessionId(session), SegmentSeq(len(runs)), SegmentSeq(0), (SegmentSeq(len(runs)),))
    for seq, run in enumerate(runs):
        held.take_in(footer(session, seq, run))
    return held


def committed(offset: int) -> tuple[str, bytes, int]:
    value = encode_offset(CommittedOffset(offset=offset, committed_at_ms=0))
    return LAYOUT.offset("billing", TopicPartition(ORDERS, Partition(0))).removeprefix(LAYOUT.root), value, 1


def committed_in(plan: RestorePlan) -> int:
    key = LAYOUT.offset("billing", TopicPartition(ORDERS, Partition(0)))
    return decode_offset(KeyValue(key, value(plan, key), Revision(1), Revision(1), 1)).offset


def test_trimmed_records_that_no_manifest_has_are_damage_and_their_epochs_are_not_assigned_again() -> None:
    evidence = found(mirrors=[mirrored(topic())], sessions=[2])
    evidence.trimmed = [trimmed((0, 7, 0), (0, 7, 2))]
    plan = planned(evidence)
    assert plan.lacking_manifests == plan.findings
    assert what(plan) == [("damage", evidence.trimmed[0].marker)]
    assert state(plan).leader_epoch == 7 + EPOCHS_AHEAD
    assert with_history(evidence, compacted(4)).findings == []
    assert what(with_history(evidence, compacted(2))) == [("damage", evidence.trimmed[0].marker)]


def test_trimmed_records_of_a_deleted_topic_and_of_an_unreadable_manifest_need_no_manifest() -> None:
    evidence = found(mirrors=[mirrored(topic(), deleted=True)], sessions=[2])
    evidence.trimmed = [trimmed((0, 7, 0))]
    assert planned(evidence).findings == []
    evidence.mirrors, evidence.unreadable = [mirrored(topic())], {TopicPartition(ORDERS, Partition(0))}
    assert planned(evidence).findings == []


def test_a_committed_offset_beyond_the_end_of_segments_and_history_is_set_back() -> None:
    def after(offset: int, *, evidence: Evidence) -> int:
        evidence.snapshot = snapshot(registration(topic()), committed(offset))
        return committed_in(planned(evidence))

    assert after(120, evidence=found(footer(1, 0, (0, 0, 0)))) == 2
    assert after(1, evidence=found(footer(1, 0, (0, 0, 0)))) == 1
    assert after(120, evidence=found()) == 0, "no session is on the bucket"
    in_history = found(footer(1, 0, (0, 0, 0)), sessions=[1])
    in_history.manifests = {TopicPartition(ORDERS, Partition(0)): compacted(40)}
    assert after(120, evidence=in_history) == 40
    in_history.manifests = {TopicPartition(ORDERS, Partition(0)): compacted(40, log_start_offset=50)}
    assert after(120, evidence=in_history) == 50
    in_history.manifests, in_history.unreadable = {}, {TopicPartition(ORDERS, Partition(0))}
    assert after(120, evidence=in_history) == 120, "the manifest may be restored"


def test_offsets_that_were_set_back_are_counted_and_reported() -> None:
    plan = planned(found(footer(1, 0, (0, 0, 0)), of=snapshot(registration(topic()), committed(120))))
    assert (plan.offsets_set_back, what(plan)) == (1, [("damage", "group billing")])


# ── what was compacted ──────────────────────────────────────────────────────────────────────────────────────────────────


def compacted(offset: int, *, epochs: Iterable[tuple[int, int]] = (), log_start_offset: int = 0) -> Manifest:
    history = compacted_to(offset, partition=TopicPartition(ORDERS, Partition(0)), epochs=tuple(epochs))
    return msgspec.structs.replace(history, log_start_offset=Offset(log_start_offset))


def with_history(evidence: Evidence, manifest: Manifest) -> RestorePlan:
    evidence.manifests = {manifest.topic_partition: manifest}
    return planned(evidence)


def test_trimmed_segments_leave_no_gap_where_a_manifest_covers_them() -> None:
    evidence = found(footer(9, 0, (0, 3, 10)), mirrors=[mirrored(topic())], sessions=[4])
    plan = with_history(evidence, compacted(10, epochs=[(1, 0), (2, 5)]))
    assert plan.findings == []
    assert [(span.leader_epoch, span.session) for span in state(plan).sessions[:-1]] == [(3, 9)]
    assert plan.topics[0].records == 12


def test_records_that_were_compacted_and_not_trimmed_yet_count_once() -> None:
    footers = [footer(4, seq, (0, 1, 2 * seq)) for seq in range(4)]
    plan = with_history(found(*footers, mirrors=[mirrored(topic())]), compacted(4, epochs=[(1, 0)]))
    assert (plan.topics[0].records, plan.findings) == (8, [])
    assert [(span.leader_epoch, span.session) for span in state(plan).sessions[:-1]] == [(1, 4)]


def test_leader_epochs_that_only_a_manifest_has_are_not_assigned_again() -> None:
    plan = with_history(found(mirrors=[mirrored(topic())], sessions=[4]), compacted(10, epochs=[(1, 0), (1_000, 5)]))
    assert state(plan).leader_epoch == 1_000 + EPOCHS_AHEAD
    assert state(plan).sessions == (SessionSpan(LeaderEpoch(1_000 + EPOCHS_AHEAD), SessionId(4), SegmentSeq(0)),)


def test_a_gap_between_a_manifest_and_the_segments_is_damage_unless_it_was_deleted() -> None:
    evidence = found(footer(9, 0, (0, 3, 12)), mirrors=[mirrored(topic())])
    assert "do not follow 9 without a gap" in with_history(evidence, compacted(10)).findings[0].what
    assert with_history(evidence, compacted(10, log_start_offset=12)).findings == []


def test_a_partition_that_only_a_manifest_has_belongs_to_its_topic() -> None:
    history = msgspec.structs.replace(compacted(10), partition=Partition(2))
    plan = with_history(found(mirrors=[mirrored(topic())], sessions=[4]), history)
    assert plan.topics[0].topic.partition_count == 3
