"""Every key of the bucket: what is built parses back, sorts as it is read, and nothing else is taken for ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.model import Revision, SegmentSeq, SessionId, TopicId
from segments.bucket.layout import (
    APPOINTMENTS,
    CLUSTER,
    SNAPSHOTS,
    TOPICS,
    WAL,
    SnapshotPosition,
    StagedKey,
    TopicKey,
    WalKey,
    appointments_key,
    chosen_key,
    claim_key,
    deleted_topic_key,
    done_key,
    end_of_session,
    end_of_topic,
    index_key,
    parse_appointments_key,
    parse_restoration_key,
    parse_snapshot_key,
    parse_staged_key,
    parse_topic_key,
    parse_wal_key,
    proof_key,
    restoration_key,
    segment_key,
    session_prefix,
    snapshot_key,
    staged_prefix,
    staged_rows_key,
    topic_mirror_key,
    trimmed_key,
)
from segments.object_store.validation import check_key

ID = TopicId("00112233445566778899aabbccddeeff")
NAMES = st.from_regex(r"[A-Za-z0-9._-]{1,249}", fullmatch=True).filter(lambda name: name not in {".", ".."})
TOPIC_IDS = st.from_regex(r"[0-9a-f]{32}", fullmatch=True).map(TopicId)
REVISIONS = st.integers(0, 10**19).map(Revision)
NUMBERS = st.integers(0, 2**64 - 1)
SESSIONS, SEQS = NUMBERS.map(SessionId), NUMBERS.map(SegmentSeq)


def test_the_keys_are_those_of_the_drawing() -> None:
    assert segment_key(SessionId(0x1A), SegmentSeq(2)) == "wal/000000000000001a/0000000000000002"
    assert claim_key(SessionId(0x1A)) == "wal/000000000000001a/claim"
    assert trimmed_key(SessionId(0x1A), SegmentSeq(3)) == "wal/000000000000001a/trimmed-0000000000000003"
    assert proof_key("f00d") == "proof/f00d"
    assert CLUSTER == "cluster.json"
    assert topic_mirror_key("orders", ID, Revision(9)) == f"topics/orders/{ID}/_log/topic-00000000000000000009.json"
    assert deleted_topic_key("orders", ID, Revision(10)) == f"topics/orders/{ID}/_log/deleted-00000000000000000010"
    assert snapshot_key(SnapshotPosition(7, Revision(11))) == "metadata/snapshot-00000000000000000007-00000000000000000011"
    assert restoration_key(11) == "metadata/restored-000000000000000b"
    assert parse_restoration_key(restoration_key(11)) == 11
    assert parse_restoration_key("metadata/restored-b") is None


@given(st.from_regex(r"[0-9a-f]{32}", fullmatch=True), NUMBERS, NUMBERS, NUMBERS)
def test_keys_that_spark_stages_parse_back(write: str, batch: int, created_ms: int, number: int) -> None:
    rows = staged_rows_key(write, batch, created_ms, "0123456789abcdef", number)
    assert parse_staged_key(rows) == StagedKey(write, batch, created_ms=created_ms)
    assert parse_staged_key(chosen_key(write, batch)) == StagedKey(write, batch, chosen=True)
    assert parse_staged_key(chosen_key(write, batch, write)) == StagedKey(write, batch, chosen=True)
    assert parse_staged_key(chosen_key(write, batch, "b")) is None
    assert parse_staged_key(done_key(write, batch)) == StagedKey(write, batch, done=True)
    assert all(key.startswith(staged_prefix(write, batch)) for key in (rows, chosen_key(write, batch), done_key(write, batch)))
    assert parse_staged_key(rows + "/x") is None
    check_key(rows)


@given(SESSIONS, SEQS)
def test_keys_that_were_built_parse_back(session: SessionId, seq: SegmentSeq) -> None:
    assert parse_wal_key(segment_key(session, seq)) == WalKey(session, seq=seq)
    assert parse_wal_key(trimmed_key(session, seq)) == WalKey(session, trimmed_to=seq)
    end = SegmentSeq(min(seq + 32, 2**64 - 1))
    assert parse_wal_key(index_key(session, seq, end)) == WalKey(session, indexed=(seq, end))
    assert parse_wal_key(claim_key(session)) == WalKey(session)


@given(SESSIONS, SEQS)
def test_every_key_is_one_that_the_stores_take(session: SessionId, seq: SegmentSeq) -> None:
    for key in (segment_key(session, seq), trimmed_key(session, seq), claim_key(session), CLUSTER, proof_key("0a")):
        assert check_key(key) == key


@given(SESSIONS, SESSIONS, SEQS, SEQS)
def test_segments_sort_by_session_and_then_by_sequence_number(
    one: SessionId, other: SessionId, first: SegmentSeq, second: SegmentSeq
) -> None:
    in_order = sorted([(one, first), (other, second)])
    assert sorted([segment_key(one, first), segment_key(other, second)]) == [segment_key(*segment) for segment in in_order]


@given(SESSIONS, SEQS, SEQS)
def test_a_listing_meets_the_segments_before_the_trim_markers(session: SessionId, seq: SegmentSeq, trimmed: SegmentSeq) -> None:
    """What was trimmed away while a session was listed is explained by a marker that is listed later."""
    assert segment_key(session, seq) < trimmed_key(session, trimmed)
    assert segment_key(session, seq).startswith(session_prefix(session))


@pytest.mark.parametrize(
    "key",
    [
        "",
        WAL,
        "wal",
        "cluster.json",
        "wal/1a/claim",  # a session of too few digits
        "wal/000000000000001A/claim",  # not the one spelling of the number
        "wal/000000000000001a",
        "wal/000000000000001a/",
        "wal/000000000000001a/seal",
        "wal/000000000000001a/claim/2",
        "wal/000000000000001a/0000000000000002/x",
        "wal/000000000000001a/00000000000000002",
        "wal/000000000000001a/trimmed-3",
        "wal/000000000000001a/trimmed-0000000000000003x",
        "wal/000000000000001a/000000000000000٢",  # a digit, but not an ASCII one
        "wal/000000000000001a/0000000000000002\n",
        "topics/wal/000000000000001a/claim",
        "topics/000000000000001a/claim",
    ],
)
def test_any_other_name_is_not_ours(key: str) -> None:
    assert parse_wal_key(key) is None


@given(st.text(max_size=60))
def test_no_text_breaks_the_parser(text: str) -> None:
    for key in (text, WAL + text, f"wal/000000000000001a/{text}"):
        parsed = parse_wal_key(key)
        assert parsed is None or key in {
            segment_key(parsed.session, parsed.seq or SegmentSeq(0)),
            trimmed_key(parsed.session, parsed.trimmed_to or SegmentSeq(0)),
            claim_key(parsed.session),
        }


@given(NAMES, TOPIC_IDS, REVISIONS)
def test_the_mirror_of_a_topic_parses_back_and_is_a_key_that_stores_take(name: str, topic_id: TopicId, revision: Revision) -> None:
    registered, deleted = topic_mirror_key(name, topic_id, revision), deleted_topic_key(name, topic_id, revision)
    assert parse_topic_key(registered) == TopicKey(name, topic_id, registered=revision)
    assert parse_topic_key(deleted) == TopicKey(name, topic_id, deleted=revision)
    assert parse_topic_key(f"{TOPICS}{name}/{topic_id}/partition=3/x.parquet") == TopicKey(name, topic_id)
    for key in (registered, deleted):
        assert check_key(key) == key
        assert key < end_of_topic(name, topic_id)


POSITIONS = st.builds(SnapshotPosition, st.integers(0, 10**20 - 1), REVISIONS)


@given(POSITIONS, POSITIONS)
def test_snapshots_sort_by_the_last_batch_of_appointments_and_then_by_their_revision(
    one: SnapshotPosition, other: SnapshotPosition
) -> None:
    assert parse_snapshot_key(snapshot_key(one)) == one
    assert snapshot_key(one).startswith(SNAPSHOTS)
    assert (snapshot_key(one) < snapshot_key(other)) == (one < other)


@given(REVISIONS)
def test_a_snapshot_whose_name_holds_no_number_is_read_and_comes_first(revision: Revision) -> None:
    assert parse_snapshot_key(f"metadata/snapshot-{revision:020d}") == SnapshotPosition(0, revision)


@given(st.integers(0, 10**20 - 1), st.integers(0, 10**20 - 1))
def test_batches_of_appointments_sort_by_their_number(one: int, other: int) -> None:
    assert parse_appointments_key(appointments_key(one)) == one
    assert appointments_key(one).startswith(APPOINTMENTS)
    assert (appointments_key(one) < appointments_key(other)) == (one < other)
    assert parse_appointments_key(appointments_key(one) + ".bak") is None


@given(SESSIONS, SEQS)
def test_stepping_over_a_session_meets_the_next(session: SessionId, seq: SegmentSeq) -> None:
    for key in (segment_key(session, seq), trimmed_key(session, seq), claim_key(session)):
        assert key < end_of_session(session)
    if session < 2**64 - 1:
        assert end_of_session(session) < segment_key(SessionId(session + 1), SegmentSeq(0))


@given(NAMES, TOPIC_IDS, TOPIC_IDS)
def test_stepping_over_one_life_of_a_topic_meets_the_next(name: str, one: TopicId, other: TopicId) -> None:
    if one < other:
        assert end_of_topic(name, one) < topic_mirror_key(name, other, Revision(0))


@pytest.mark.parametrize(
    "key",
    ["topics/orders", f"topics/orders/{ID}", f"topics/a b/{ID}/_log/x", "topics/orders/short/_log/x", f"wal/orders/{ID}/_log/x"],
)
def test_other_names_are_no_topics(key: str) -> None:
    assert parse_topic_key(key) is None


@pytest.mark.parametrize("name", ["topic-1.json", f"topic-{9:020d}", f"deleted-{9:020d}.json", f"sub/topic-{9:020d}.json"])
def test_other_names_in_a_topic_are_no_mirror(name: str) -> None:
    assert parse_topic_key(f"topics/orders/{ID}/_log/{name}") == TopicKey("orders", ID)


@pytest.mark.parametrize("key", ["metadata/snapshot-1", f"snapshot-{1:020d}", f"metadata/snapshot-{1:020d}x"])
def test_other_names_are_no_snapshots(key: str) -> None:
    assert parse_snapshot_key(key) is None
