"""What the sink is asked for, and what it refuses on the driver."""

from __future__ import annotations

import dataclasses

import pytest

from metadata.errors import InvalidArgument
from segments.records.compression import Codec
from spark.sink.options import CREDENTIALS, check_columns, hashed_write_id, parse_sink_options
from tidelog.settings import ClientSettings

WHERE = {"brokers": "http://b:8080", "bucket": "s3://lake/log"}
HEADERS = "array<struct<key:string,value:binary>>"


def test_options_are_read_without_regard_to_case() -> None:
    options = parse_sink_options({**WHERE, "TOPIC": "orders", "Compression.Type": "ZSTD", "writeid": "load of monday", "path": "x"})
    assert (options.brokers, options.bucket, options.topic, options.codec) == (
        "http://b:8080",
        "s3://lake/log",
        "orders",
        Codec.ZSTD,
    )
    assert options.write_id == hashed_write_id("load of monday")
    assert parse_sink_options({**WHERE, "writeId": "0f" * 16}).write_id == "0f" * 16, "as an error prints it"
    defaults = parse_sink_options({**WHERE, "checkpointLocation": "/c", "queryName": "q"})
    assert (defaults.topic, defaults.codec, defaults.write_id) == (None, Codec.NONE, None)


@pytest.mark.parametrize(
    ("given", "reported", "hint"),
    [
        ({"bucket": "s3://lake/log"}, "option brokers is missing", "http://HOST:8080"),
        ({"brokers": "http://b:8080"}, "option bucket is missing: rows are staged", "s3://BUCKET/PREFIX"),
        ({**WHERE, "topic": "a b"}, "option topic: 'a b' is not the name of a topic", ""),
        ({**WHERE, "compression.type": "lzma"}, "option compression.type: 'lzma'", "none, gzip, snappy, lz4 or zstd"),
        ({**WHERE, "writeId": ""}, "option writeId", "1 to 200 characters"),
        ({**WHERE, "producerExpiryMs": "-1"}, "option producerExpiryMs", "from 1 on"),
        ({**WHERE, "topics": "orders"}, "option topics: 'orders' is no option of this sink", "Did you mean topic?"),
        ({**WHERE, "kafka.bootstrap.servers": "b:9092"}, "an option of Kafka's brokers", "by `brokers`"),
    ],
)
def test_a_malformed_option_is_refused_with_option_value_and_remedy(given: dict[str, str], reported: str, hint: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_sink_options(given)
    assert reported in refused.value.message
    assert hint in refused.value.hint


def test_columns_are_those_of_the_kafka_sink_and_a_timestamp() -> None:
    check_columns([("Key", "string"), ("value", "binary"), ("headers", HEADERS), ("timestamp", "timestamp")], topic_is_given=True)
    check_columns([("value", "string"), ("topic", "string"), ("partition", "int")], topic_is_given=False)


@pytest.mark.parametrize(
    ("columns", "reported"),
    [
        ([("key", "string")], "no column value"),
        ([("value", "bigint")], "column value is bigint; it must be binary or string"),
        ([("value", "string"), ("timestamp", "bigint")], "column timestamp is bigint"),
        ([("value", "string"), ("timestamp", "timestamp_ntz")], "column timestamp is timestamp_ntz"),
        ([("value", "string"), ("partition", "string")], "column partition is string; it must be int"),
        ([("value", "string"), ("headers", "map<string,string>")], "column headers is map<string,string>"),
        ([("value", "string"), ("offset", "bigint")], "no column 'offset'; the rows have value, offset"),
        ([("value", "string"), ("VALUE", "string")], "'value' and 'VALUE' are the same"),
    ],
)
def test_columns_that_no_record_has_or_of_another_type_are_refused(columns: list[tuple[str, str]], reported: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_columns(columns, topic_is_given=True)
    assert reported in refused.value.message
    assert refused.value.hint


def test_without_a_topic_there_is_nowhere_to_write() -> None:
    with pytest.raises(InvalidArgument, match="neither the option topic nor a column topic"):
        check_columns([("value", "string")], topic_is_given=False)


def test_credentials_are_passed_on_to_the_client_and_a_key_is_no_option() -> None:
    found = parse_sink_options({**WHERE, "caFile": "ca.pem", "APIKEYFILE": "key", "tlsServerName": "brokers.example"})
    assert dict(found.credentials) == {"ca_file": "ca.pem", "api_key_file": "key", "tls_server_name": "brokers.example"}
    assert set(CREDENTIALS.values()) < {field.name for field in dataclasses.fields(ClientSettings)}
    with pytest.raises(InvalidArgument, match="is no option of this sink"):
        parse_sink_options({**WHERE, "apiKey": "tlk_a_b"})
