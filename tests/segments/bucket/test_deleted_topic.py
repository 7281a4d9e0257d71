"""The marker of a deleted topic is read as it was written; an older one has no time, and a foreign one has nothing."""

from __future__ import annotations

import pytest

from metadata.model import Revision
from segments.bucket.deleted_topic import TopicTombstone, encode_deleted_topic, parse_deleted_topic
from tests.kit.segments.batches import ORDERS


def test_a_marker_comes_back_as_it_was_written() -> None:
    marker = TopicTombstone(name="orders", id=ORDERS.topic_id, gone_at_revision=Revision(9), marked_at_ms=5)
    assert parse_deleted_topic(encode_deleted_topic(marker)) == marker


def test_a_marker_of_an_earlier_version_has_no_time() -> None:
    found = parse_deleted_topic(b'{"name":"orders","id":"1f","gone_at_revision":9}')
    assert found is not None
    assert found.marked_at_ms is None


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff", b'{"name":"orders","id":"1f","gone_at_revision":"9"}'])
def test_a_body_that_is_no_marker_says_nothing(body: bytes) -> None:
    assert parse_deleted_topic(body) is None
