"""Options by the names of Spark's Kafka source: what they mean, and what is refused on the driver."""

from __future__ import annotations

import pytest

from metadata.errors import InvalidArgument
from spark.source.options import (
    EARLIEST,
    LATEST,
    AssignedPartitions,
    AtOffset,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Matching,
    Position,
    Subscribed,
    Unmatched,
    parse_source_options,
)

BUCKET = {"bucket": "s3://lake/log"}
ORDERS = {**BUCKET, "subscribe": "orders"}


def test_defaults_are_those_of_the_kafka_source() -> None:
    options = parse_source_options(ORDERS)
    assert (options.start, options.end) == (None, AtOffset(LATEST))
    assert (options.fail_on_data_loss, options.include_headers, options.unmatched) == (True, False, Unmatched.ERROR)


def test_names_are_compared_without_regard_to_case() -> None:
    options = parse_source_options({**BUCKET, "SUBSCRIBE": "orders", "startingoffsets": "Latest", "failondataloss": "FALSE"})
    assert (options.start, options.fail_on_data_loss) == (AtOffset(LATEST), False)


def test_topics_are_named_matched_or_assigned() -> None:
    assert parse_source_options({**BUCKET, "subscribe": " b , a,b"}).topics == Subscribed(("b", "a"))
    assert parse_source_options({**BUCKET, "assign": '{"a":[2,0,2]}'}).topics == AssignedPartitions({"a": (2, 0)})
    matching = parse_source_options({**BUCKET, "subscribePattern": "a.*"}).topics
    assert isinstance(matching, Matching)
    assert matching.pattern.pattern == "a.*"


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ({"startingOffsets": "earliest"}, AtOffset(EARLIEST)),
        ({"startingOffsets": '{"orders":{"0":7,"1":-2}}'}, AtOffsets({"orders": {0: 7, 1: -2}})),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":7}}', "startingOffsets": "latest"}, AtTimestamps({"orders": {0: 7}})),
        ({"startingTimestamp": "9", "startingOffsetsByTimestamp": '{"orders":{"0":7}}'}, AtTimestamp(9)),
    ],
)
def test_the_most_exact_start_counts(given: dict[str, str], start: Position) -> None:
    assert parse_source_options({**ORDERS, **given}).start == start


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"subscribe": "orders"}, "option bucket is missing"),
        (BUCKET, "none of subscribe, subscribePattern and assign"),
        ({**ORDERS, "assign": '{"a":[0]}'}, "subscribe and assign are given"),
        ({**BUCKET, "subscribe": "a b"}, "option subscribe: 'a b'"),
        ({**BUCKET, "subscribe": " , "}, "option subscribe: .* it names none"),
        ({**BUCKET, "subscribePattern": "("}, "option subscribePattern"),
        ({**BUCKET, "assign": '{"a":[-1]}'}, "below 0"),
        ({**BUCKET, "assign": '{"a":[]}'}, "no partition"),
        ({**BUCKET, "assign": "[1]"}, "option assign"),
        ({**ORDERS, "startingOffsets": "newest"}, "option startingOffsets: 'newest' is not \"earliest\""),
        ({**ORDERS, "startingOffsets": '{"orders":{"0":-3}}'}, "-3 for orders/0"),
        ({**ORDERS, "startingOffsets": '{"orders":{"0":-3'}, "option startingOffsets"),
        ({**ORDERS, "endingOffsets": "earliest"}, "nothing would be read"),
        ({**ORDERS, "endingOffsets": '{"orders":{"0":-2}}'}, "-2 for orders/0"),
        ({**ORDERS, "startingTimestamp": "2026-01-01"}, "option startingTimestamp: '2026-01-01'"),
        ({**ORDERS, "endingTimestamp": "-1"}, "option endingTimestamp: '-1'"),
        ({**ORDERS, "minPartitions": "0"}, "option minPartitions: '0' is not a number from 1 on"),
        ({**ORDERS, "failOnDataLoss": "no"}, "is not true or false"),
        ({**ORDERS, "maxOffsetsPerTrigger": "9"}, "is no option of this source"),
        ({**ORDERS, "startingOffsetsByTimestampStrategy": "newest"}, "is not error or latest"),
        ({**ORDERS, "kafka.bootstrap.servers": "b:9092"}, "an option of Kafka's brokers"),
    ],
)
def test_a_malformed_option_is_refused_with_option_value_and_remedy(given: dict[str, str], reported: str) -> None:
    with pytest.raises(InvalidArgument, match=reported) as refused:
        parse_source_options(given)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("startingofsets", "startingOfsets"),
        ("groupidprefix", "groupIdPrefix"),
        ("maxoffsetspertrigger", "maxOffsetsPerTrigger"),
        ("kafkaconsumer.polltimeoutms", "kafkaConsumer.pollTimeoutMs"),
        ("xyz", "xyz"),
    ],
)
def test_errors_restore_the_spelling_of_an_option_that_spark_passes_in_lower_case(name: str, shown: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^option {shown}: 'a' is"):
        parse_source_options({**ORDERS, name: "a"})
    with pytest.raises(InvalidArgument, match=r"^option StartingOfSets: 'a' is"):
        parse_source_options({**ORDERS, "StartingOfSets": "a"})


def test_an_unknown_option_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_source_options({**ORDERS, "startingOfsets": "earliest"})
    assert refused.value.hint == "Did you mean startingOffsets?"


def test_a_value_of_a_megabyte_is_shortened_in_its_error() -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_source_options({**ORDERS, "startingOffsets": "x" * 1_000_000})
    assert len(refused.value.message) < 1000
