"""Every key of the bucket: what is built parses back, sorts as it is read, and nothing else is taken for ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.model import SegmentSeq, SessionId
from segments.bucket_layout import (
    CLUSTER,
    WAL,
    WalKey,
    claim_key,
    index_key,
    parse_wal_key,
    proof_key,
    segment_key,
    session_prefix,
    trimmed_key,
)
from segments.object_request import check_key

NUMBERS = st.integers(0, 2**64 - 1)
SESSIONS, SEQS = NUMBERS.map(SessionId), NUMBERS.map(SegmentSeq)


def test_the_keys_are_those_of_the_drawing() -> None:
    assert segment_key(SessionId(0x1A), SegmentSeq(2)) == "wal/000000000000001a/0000000000000002"
    assert claim_key(SessionId(0x1A)) == "wal/000000000000001a/claim"
    assert trimmed_key(SessionId(0x1A), SegmentSeq(3)) == "wal/000000000000001a/trimmed-0000000000000003"
    assert proof_key("f00d") == "proof/f00d"
    assert CLUSTER == "cluster.json"


@given(SESSIONS, SEQS)
def test_what_was_built_parses_back(session: SessionId, seq: SegmentSeq) -> None:
    assert parse_wal_key(segment_key(session, seq)) == WalKey(session, seq=seq)
    assert parse_wal_key(trimmed_key(session, seq)) == WalKey(session, trimmed_to=seq)
    assert parse_wal_key(index_key(session, seq, SegmentSeq(seq + 32))) == WalKey(session, indexed=(seq, SegmentSeq(seq + 32)))
    assert parse_wal_key(claim_key(session)) == WalKey(session)


@given(SESSIONS, SEQS)
def test_every_key_is_one_that_the_stores_take(session: SessionId, seq: SegmentSeq) -> None:
    for key in (segment_key(session, seq), trimmed_key(session, seq), claim_key(session), CLUSTER, proof_key("0a")):
        assert check_key(key) == key


@given(SESSIONS, SESSIONS, SEQS, SEQS)
def test_segments_sort_by_session_and_then_by_place(
    one: SessionId, other: SessionId, first: SegmentSeq, second: SegmentSeq
) -> None:
    in_order = sorted([(one, first), (other, second)])
    assert sorted([segment_key(one, first), segment_key(other, second)]) == [segment_key(*place) for place in in_order]


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
