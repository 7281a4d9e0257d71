"""Ids of server-sent events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.records.event_ids import decode_event_id, encode_event_id
from metadata.errors import InvalidArgument
from metadata.model import TopicId

TOPIC_ID = TopicId("0123456789abcdef" * 2)


@given(st.lists(st.integers(0, 10**18 - 1), min_size=1, max_size=50))
def test_an_event_id_decodes_to_the_positions_that_it_was_made_of(offsets: list[int]) -> None:
    positions = dict(enumerate(offsets))
    assert decode_event_id(encode_event_id(TOPIC_ID, positions), partition=None) == (TOPIC_ID, positions)
    last = len(offsets) - 1
    assert decode_event_id(encode_event_id(TOPIC_ID, {last: 7}), partition=last) == (TOPIC_ID, {last: 7})


WRONG_POSITIONS = ["", "0:1,", "0:-1", "0:1;1:1", "1:1", "0:1,0:2", "0:1,2:2", f"0:{'9' * 19}", "0:\u0661", "0:1\n"]
OTHERWISE_WRONG = ["", "17", "0:18,1:4", "x", "/0:1", TOPIC_ID, f"{TOPIC_ID.upper()}/0:1", f" {TOPIC_ID}/0:1"]


@pytest.mark.parametrize("text", [*OTHERWISE_WRONG, *(f"{TOPIC_ID}/{positions}" for positions in WRONG_POSITIONS)])
def test_a_text_that_is_no_id_of_a_stream_over_all_partitions_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="Last-Event-ID"):
        decode_event_id(text, partition=None)


@pytest.mark.parametrize("positions", ["0:1", "0:1,1:1", "1:1,1:2"])
def test_an_id_of_another_stream_is_refused_by_the_stream_of_one_partition(positions: str) -> None:
    with pytest.raises(InvalidArgument, match="partition 1"):
        decode_event_id(f"{TOPIC_ID}/{positions}", partition=1)
