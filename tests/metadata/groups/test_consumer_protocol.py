"""What members of a group exchange, in the bytes of Kafka's consumers."""

from __future__ import annotations

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import InvalidArgument
from metadata.groups.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
PARTITIONS = st.dictionaries(NAMES, st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=4)
SUBSCRIPTIONS = st.builds(
    Subscription,
    st.lists(NAMES, max_size=5).map(tuple),
    PARTITIONS,
    st.integers(-1, 2**31 - 1),
    st.one_of(st.just(""), NAMES),
    st.binary(max_size=20),
)


@given(subscription=SUBSCRIPTIONS)
def test_a_subscription_is_read_as_it_was_written(subscription: Subscription) -> None:
    assert decode_subscription(encode_subscription(subscription)) == subscription


@given(partitions=PARTITIONS, user_data=st.binary(max_size=20))
def test_an_assignment_is_read_as_it_was_written(partitions: dict[str, list[int]], user_data: bytes) -> None:
    assert decode_assignment(encode_assignment(partitions, user_data)) == partitions


@given(subscription=SUBSCRIPTIONS)
def test_the_first_fields_of_a_subscription_are_those_that_another_client_writes_and_reads(subscription: Subscription) -> None:
    ours = encode_subscription(subscription)
    theirs = ConsumerProtocolMemberMetadata(0, list(subscription.topics), subscription.user_data).encode()
    assert ours[2:].startswith(theirs[2:])
    assert ConsumerProtocolMemberMetadata.decode(ours).subscription == list(subscription.topics)
    assert decode_subscription(theirs) == Subscription(subscription.topics, user_data=subscription.user_data)


@given(partitions=PARTITIONS, user_data=st.binary(max_size=20))
def test_an_assignment_has_the_bytes_that_another_client_writes_but_for_its_version(
    partitions: dict[str, list[int]], user_data: bytes
) -> None:
    theirs = ConsumerProtocolMemberAssignment(3, sorted(partitions.items()), user_data).encode()
    assert encode_assignment(partitions, user_data) == theirs
    assert decode_assignment(theirs) == partitions


def test_fields_from_each_version_on() -> None:
    topics = b"\0\0\0\1\0\1t" + b"\xff\xff\xff\xff"
    owned = b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\7"
    assert decode_subscription(b"\0\0" + topics) == Subscription(("t",))
    assert decode_subscription(b"\0\1" + topics + owned) == Subscription(("t",), {"t": [7]})
    assert decode_subscription(b"\0\2" + topics + owned + b"\0\0\0\5") == Subscription(("t",), {"t": [7]}, 5)
    assert decode_subscription(b"\0\3" + topics + owned + b"\0\0\0\5\0\1r") == Subscription(("t",), {"t": [7]}, 5, "r")
    assert decode_subscription(b"\0\4" + topics + owned + b"\0\0\0\5\0\1r" + b"later") == Subscription(("t",), {"t": [7]}, 5, "r")


def test_no_bytes_are_an_assignment_of_no_partitions() -> None:
    assert decode_assignment(b"") == {}


@given(subscription=SUBSCRIPTIONS, share=st.floats(0, 1, exclude_max=True))
def test_torn_bytes_are_refused(subscription: Subscription, share: float) -> None:
    whole = encode_subscription(subscription)
    with pytest.raises(InvalidArgument, match="torn"):
        decode_subscription(whole[: int(share * len(whole))])


@given(data=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except InvalidArgument:
            continue


@pytest.mark.parametrize(
    "data", [b"\xff\xff" + bytes(20), b"\0\0\x7f\xff\xff\xff" + bytes(20), b"\0\0\0\0\0\1\0\1\xff" + bytes(20)]
)
def test_a_negative_version_counts_without_bytes_and_broken_text_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        decode_subscription(data)


def test_a_topic_name_that_exceeds_its_length_field_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="longer than 32767"):
        encode_subscription(Subscription(("t" * 32_768,)))
