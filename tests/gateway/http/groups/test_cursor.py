from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.groups.cursor import ENTRIES_MAX, Cursor, CursorEntry, CursorOwner, decode_cursor, encode_cursor
from metadata.errors import InvalidArgument
from metadata.groups.model import Generation, MemberId
from metadata.model import Partition, TopicId, TopicPartition

OWNER = CursorOwner("cluster", "billing", MemberId("script-1"))
T1, T2 = TopicId("1" * 32), TopicId("f" * 32)

topics = st.sampled_from([T1, T2, TopicId("0" * 32)])
partitions = st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1).map(Partition))
entries = st.builds(CursorEntry, st.integers(0, 2**63 - 1), st.booleans())
cursors = st.builds(
    Cursor,
    st.integers(0, 2**31 - 1).map(Generation),
    st.dictionaries(partitions, entries, max_size=20),
    st.integers(0, 10_000),
)


@given(cursors)
def test_a_cursor_comes_back_as_it_was(cursor: Cursor) -> None:
    text = encode_cursor(cursor, OWNER)
    assert decode_cursor(text, OWNER) == cursor
    assert text.replace("-", "").replace("_", "").isalnum(), "it stands in a URL as it is"


@given(cursors, st.integers(min_value=0), st.integers(1, 255))
def test_a_damaged_cursor_is_refused(cursor: Cursor, at: int, change: int) -> None:
    data = bytearray(base64.urlsafe_b64decode(encode_cursor(cursor, OWNER) + "=="))
    data[at % len(data)] ^= change
    with pytest.raises(InvalidArgument):
        decode_cursor(base64.urlsafe_b64encode(data).rstrip(b"=").decode(), OWNER)


@given(st.text(max_size=60))
def test_a_text_that_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        decode_cursor(text, OWNER)


@pytest.mark.parametrize(
    "other",
    [
        OWNER._replace(cluster_id="another"),
        OWNER._replace(group="another"),
        OWNER._replace(member_id=MemberId("script-2")),
        CursorOwner("clusterbilling", "", OWNER.member_id),
    ],
)
def test_a_cursor_of_another_is_refused(other: CursorOwner) -> None:
    text = encode_cursor(Cursor(Generation(3), {}), OWNER)
    with pytest.raises(InvalidArgument, match="not issued to this member"):
        decode_cursor(text, other)


def of_topic(topic: TopicId, count: int, *, must_stay: int = 0) -> dict[TopicPartition, CursorEntry]:
    return {
        TopicPartition(topic, Partition(number)): CursorEntry(10**6 + 977 * number, must_stay=number < must_stay)
        for number in range(count)
    }


def test_a_cursor_of_many_partitions_holds_only_what_is_not_committed() -> None:
    many = of_topic(T1, 10_000, must_stay=500)
    found = decode_cursor(encode_cursor(Cursor(Generation(1), many), OWNER), OWNER)
    assert found.entries == {partition: entry for partition, entry in many.items() if entry.must_stay}


def test_a_cursor_fits_a_url_whatever_it_holds() -> None:
    longest = {at: CursorEntry(2**63 - 1, must_stay=True) for at in of_topic(T1, ENTRIES_MAX - 2)}
    assert len(encode_cursor(Cursor(Generation(2**31 - 1), longest), OWNER)) < 10_000
    assert len(encode_cursor(Cursor(Generation(1), of_topic(T1, ENTRIES_MAX - 2)), OWNER)) < 5_000
    scattered = {
        TopicPartition(TopicId(f"{number:032x}"), Partition(0)): CursorEntry(10**9, must_stay=True) for number in range(200)
    }
    assert len(encode_cursor(Cursor(Generation(1), scattered), OWNER)) < 7_000


def test_a_cursor_would_commit_the_offsets_that_were_read_since() -> None:
    first, second = TopicPartition(T1, Partition(0)), TopicPartition(T2, Partition(7))
    cursor = Cursor(Generation(1), {first: CursorEntry(4, must_stay=True), second: CursorEntry(9, must_stay=False)})
    assert cursor.uncommitted == {first: 4}
