"""Rows to record batches: where they go, in which order, and that nothing of them is lost."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proto import admin_pb2
from metadata.cluster.id_allocation import DERIVED_IDS, IDEMPOTENCY_KEY_IDS
from metadata.errors import Corrupt, InvalidArgument, InvalidTimestamp, TooLarge, UnknownPartition, UnknownTopic
from metadata.topics.settings import INT64_MAX, TimestampType
from segments.bucket.layout import chosen_key
from segments.records.batch import parse_whole
from segments.records.batch_kernel import RecordTuple
from segments.records.columns import decode_batches, encode_records, iterate_records
from segments.records.compression import Codec
from segments.records.partitioner import partition_of
from spark.runtime.bucket_thread import BucketThread
from spark.sink import brokers as sink_brokers
from spark.sink.options import parse_sink_options
from spark.sink.row_encoder import KEYLESS_ROWS_MIN, Encoded, TopicFacts, check_dates, encode_rows, pieces, rows_of
from spark.sink.staged_files import ChosenBatch, StagedFile, StagedPartition, encode_file, open_file, producer_of, sequenced
from spark.sink.staging import Staging
from spark.source.schema import as_source_rows
from tidelog.transport.routes import LeaderEpochs, route_from

BYTES_MAX = 64 << 20
ORDERS = TopicFacts("orders", "a" * 32, 3, 1 << 20)
PAYMENTS = TopicFacts("payments", "b" * 32, 2, 1 << 20)
TOPICS = {"orders": ORDERS, "payments": PAYMENTS}
HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
BYTES = st.none() | st.binary(max_size=20)
ROWS = st.lists(
    st.tuples(
        BYTES,
        BYTES,
        st.none() | st.lists(st.fixed_dictionaries({"key": st.text(max_size=3), "value": BYTES}), max_size=3),
        st.none() | st.integers(0, 2**50),
        st.none() | st.integers(0, 1),
        st.sampled_from(["orders", "payments"]),
    ),
    min_size=1,
    max_size=60,
)


def batch_of(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(list(columns.values()), names=list(columns))


def encoded(
    *batches: pa.RecordBatch, topic: str | None = "orders", facts: dict[str, TopicFacts] = TOPICS, codec: Codec = Codec.NONE
) -> dict[StagedPartition, list[Encoded]]:
    rows = rows_of(batches, now_ms=7)
    made = list(encode_rows(rows, facts, topic=topic, codec=codec, first_keyless=0))
    assert len({where for where, _ in made}) == len(made)
    return dict(made)


def records(batches: list[Encoded]) -> list[RecordTuple]:
    found: list[RecordTuple] = []
    for batch, count in batches:
        there = iterate_records(batch, decompressed_bytes_max=BYTES_MAX)
        assert len(there) == count
        found += there
    return found


@given(ROWS, st.integers(1, 7), st.sampled_from(Codec))
def test_rows_of_each_partition_keep_their_order_and_all_that_is_in_them(rows: list[tuple], cut: int, codec: Codec) -> None:  # type: ignore[type-arg]  # the test's own
    key, value, headers, at_us, partition, topic = zip(*rows, strict=True)
    whole = batch_of(
        key=pa.array(key, pa.binary()),
        Value=pa.array(value, pa.binary()),
        headers=pa.array(headers, HEADERS),
        timestamp=pa.array(at_us, pa.timestamp("us", "UTC")),
        partition=pa.array(partition, pa.int32()),
        topic=pa.array(topic, pa.string()),
    )
    made = encoded(*(whole.slice(start, cut) for start in range(0, len(rows), cut)), topic=None, codec=codec)
    expected: dict[tuple[str, int], list[tuple]] = {}  # type: ignore[type-arg]  # the test's own
    for row in rows:
        without_key = 0 if row[0] is None else partition_of(row[0], TOPICS[row[5]].partition_count)
        record = (
            7 if row[3] is None else row[3] // 1000,
            row[0],
            row[1],
            tuple((header["key"], header["value"]) for header in row[2] or ()),
        )
        expected.setdefault((row[5], without_key if row[4] is None else row[4]), []).append(record)
    found = {(where.topic, where.partition): [record[1:] for record in records(batches)] for where, batches in made.items()}
    assert found == expected


def test_the_order_of_a_key_is_the_order_of_its_rows() -> None:
    keys = [b"k%d" % (n % 5) for n in range(1000)]
    made = encoded(batch_of(key=pa.array(keys), value=pa.array([b"%d" % n for n in range(1000)])))
    for batches in made.values():
        values = [int(value) for _, _, _, value, _ in records(batches) if value is not None]
        assert values == sorted(values)
    assert sum(len(records(batches)) for batches in made.values()) == 1000


def test_rows_without_a_key_are_spread_in_pieces() -> None:
    many = encoded(batch_of(value=pa.array(["v"] * 9_000)))
    assert sorted(len(records(batches)) for batches in many.values()) == [3_000] * 3
    few = encoded(batch_of(value=pa.array(["v"] * KEYLESS_ROWS_MIN)))
    assert len(few) == 1


def test_batches_fit_the_topic() -> None:
    facts = TopicFacts("orders", "a" * 32, 1, 10_000)
    (batches,) = encoded(batch_of(value=pa.array([b"x" * (n % 900) for n in range(500)])), facts={"orders": facts}).values()
    assert max(len(batch) for batch, _ in batches) <= 10_000
    assert [len(record[3] or b"") for record in records(batches)] == [n % 900 for n in range(500)]


@pytest.mark.parametrize(
    ("columns", "error", "reported"),
    [
        ({"topic": ["orders", None]}, UnknownTopic, "column topic is null in 1 of 2 rows, in row 1 first"),
        ({"partition": [0, 3]}, UnknownPartition, "partition 3 of orders, which has 0 to 2"),
        ({"partition": [0, -1]}, UnknownPartition, "partition -1 of orders"),
        ({"value": [b"", b"x" * 2_000_000]}, TooLarge, "orders/.*: a record takes .* bytes as a batch; the topic takes 1048576"),
        ({"timestamp": pa.array([-1_000_000, 0], pa.timestamp("us", "UTC"))}, InvalidArgument, "1 rows before 1970"),
        ({"timestamp": pa.array([-1_000, -1], pa.timestamp("us", "UTC"))}, InvalidArgument, "1 rows before 1970"),
        ({"headers": pa.array([[None], []], HEADERS)}, InvalidArgument, "a header is null"),
        ({"headers": pa.array([[{"key": None, "value": b""}], []], HEADERS)}, InvalidArgument, "a header is null, or its key is"),
    ],
)
def test_rows_that_can_not_be_records_are_refused(columns: dict[str, object], error: type[Exception], reported: str) -> None:
    whole = {"value": [b"v", b"w"], "key": ["k", "l"]} | columns
    topic = None if "topic" in columns else "orders"
    arrays = {name: column if isinstance(column, pa.Array) else pa.array(column) for name, column in whole.items()}
    with pytest.raises(error, match=reported):
        encoded(batch_of(**arrays), topic=topic)


HOUR_MS = 3_600_000
NOW_MS = 1_767_225_600_000
IN_AN_HOUR = TopicFacts("orders", "a" * 32, 3, 1 << 20, "CreateTime", HOUR_MS)


def dated(*timestamps_ms: int | None, topics: list[str] | None = None) -> pa.RecordBatch:
    at_us = [None if at_ms is None else 1000 * at_ms for at_ms in timestamps_ms]
    columns = {"value": pa.array(["v"] * len(at_us)), "timestamp": pa.array(at_us, pa.timestamp("us", "UTC"))}
    return batch_of(**columns, **({} if topics is None else {"topic": pa.array(topics)}))


def check(rows: pa.RecordBatch, *facts: TopicFacts) -> None:
    named = {one.name: one for one in facts}
    check_dates(rows_of([rows], now_ms=NOW_MS), named, topic=None if "topic" in rows.schema.names else "orders", now_ms=NOW_MS)


def test_rows_within_the_hour_or_without_a_date_are_taken() -> None:
    check(dated(None, -1, 0, NOW_MS, NOW_MS + HOUR_MS), IN_AN_HOUR)
    check(dated(None), msgspec.structs.replace(IN_AN_HOUR, timestamp_after_max_ms=0))


def test_rows_too_far_ahead_are_refused_and_the_error_says_what_to_do() -> None:
    far_ms = NOW_MS + HOUR_MS + 1
    with pytest.raises(InvalidTimestamp) as reported:
        check(dated(NOW_MS, far_ms, None, far_ms + 7), IN_AN_HOUR)
    assert reported.value.message == (
        f"the column timestamp has 2 rows too far ahead: the first, for orders, is dated {far_ms} ms, 3600001 ms ahead of the "
        "clock here; orders takes at most 3600000 ms. Nothing of this batch of rows was written"
    )
    assert f"tidelog topic alter orders --set message.timestamp.after.max.ms={INT64_MAX}" in reported.value.hint


def test_a_topic_with_any_date_or_times_of_its_brokers_takes_rows_of_any_year() -> None:
    check(dated(2**63 // 1000 - 1), msgspec.structs.replace(IN_AN_HOUR, timestamp_after_max_ms=INT64_MAX))
    check(dated(2**63 // 1000 - 1), msgspec.structs.replace(IN_AN_HOUR, timestamp_type="LogAppendTime"))
    check(dated(2**63 // 1000 - 1), ORDERS)


def test_each_topic_has_its_own_limit() -> None:
    ahead_ms = NOW_MS + 2 * HOUR_MS
    check(dated(NOW_MS, ahead_ms, topics=["orders", "payments"]), IN_AN_HOUR, PAYMENTS)
    with pytest.raises(InvalidTimestamp, match="has 1 rows too far ahead: the first, for orders"):
        check(dated(ahead_ms, ahead_ms, topics=["payments", "orders"]), IN_AN_HOUR, PAYMENTS)


@pytest.mark.parametrize(
    ("settings", "kind", "after_max_ms", "ahead_ms_max"),
    [
        ({}, "CreateTime", HOUR_MS, HOUR_MS),
        ({"message.timestamp.after.max.ms": "5", "retention.ms": "-1"}, "CreateTime", 5, 5),
        ({"message.timestamp.type": "LogAppendTime"}, "LogAppendTime", HOUR_MS, INT64_MAX),
        ({"cleanup.policy": "of a later version", "of.a.later.version": "1"}, "CreateTime", HOUR_MS, HOUR_MS),
    ],
)
def test_the_route_of_a_topic_has_the_facts_that_a_task_needs(
    settings: dict[str, str], kind: TimestampType, after_max_ms: int, ahead_ms_max: int
) -> None:
    topic = admin_pb2.Topic(name="orders", id="a" * 32, partition_count=3, batch_bytes_max=1 << 20, settings=settings)
    route = route_from(topic, address_of={}, limits_at={}, anyone="a:1", learnt_s=0.0, epochs=LeaderEpochs())
    facts = sink_brokers.facts_of(route)
    assert facts == TopicFacts("orders", "a" * 32, 3, 1 << 20, kind, after_max_ms)
    assert facts.ahead_ms_max == ahead_ms_max


@pytest.mark.parametrize("is_chosen", [False, True])
def test_dates_are_looked_at_until_an_attempt_is_chosen(tmp_path: Path, is_chosen: bool) -> None:
    """Spark runs a batch again whose rows were sent, and the topic may take less then: what is chosen must be found, and end."""
    options = parse_sink_options({"brokers": "http://b1", "bucket": tmp_path.as_uri(), "topic": "orders"})
    rows = dated(time.time_ns() // 1_000_000 + 2 * HOUR_MS)
    with BucketThread(options.bucket) as bucket:
        staging = Staging(bucket, options, {"orders": IN_AN_HOUR}, "0f" * 16, 3)
        if is_chosen:
            bucket.run(lambda store: store.create(chosen_key("0f" * 16, 3), [b"{}"]))
            assert len(staging.stage(iter([rows]))) == 1
            return
        bucket.run(lambda store: store.create(chosen_key("0f" * 16, 2), [b"{}"]))
        with pytest.raises(InvalidTimestamp):
            staging.stage(iter([rows]))
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {Path(chosen_key("0f" * 16, 2)).name}


def test_dates_are_looked_at_again_where_a_batch_is_chosen_again_for_a_topic_that_was_made_again(tmp_path: Path) -> None:
    """A row that the new topic refuses would be chosen for good, and keep the batch from completion."""
    options = parse_sink_options(
        {"brokers": "http://b1", "bucket": tmp_path.as_uri(), "topic": "orders", "failOnDataLoss": "false"}
    )
    rows, write = dated(time.time_ns() // 1_000_000 + 2 * HOUR_MS), "0f" * 16

    def chosen_for(topic_id: str) -> list[bytes]:
        file = StagedFile("key", 1, 0, ((StagedPartition("orders", topic_id, 0), 1),))
        chosen = ChosenBatch(write=write, batch=3, created_ms=0, nonce="", files=(file,))
        return [msgspec.json.encode(chosen)]

    with BucketThread(options.bucket) as bucket:
        former, present = "f" * 32, IN_AN_HOUR.topic_id
        bucket.run(lambda store: store.create(chosen_key(write, 3), chosen_for(former)))
        with pytest.raises(InvalidTimestamp):
            Staging(bucket, options, {"orders": IN_AN_HOUR}, write, 3).stage(iter([rows]))
        bucket.run(lambda store: store.create(chosen_key(write, 3, present), chosen_for(present)))
        assert len(Staging(bucket, options, {"orders": IN_AN_HOUR}, write, 3).stage(iter([rows]))) == 1
        bucket.run(lambda store: store.create(chosen_key(write, 4), chosen_for(present)))
        assert len(Staging(bucket, options, {"orders": IN_AN_HOUR}, write, 4).stage(iter([rows]))) == 1


def test_a_record_without_a_timestamp_is_written_on_as_it_was_read() -> None:
    """Brokers take such ones of other clients than ours: a replay of theirs must not fail."""
    batch = encode_records([(b"k", b"v", (), -1), (b"k", b"w", (), 5)], codec=Codec.NONE)
    columns = ("key", "value", "timestamp", "headers")
    records_read = decode_batches([batch], decompressed_bytes_max=BYTES_MAX)
    (written,) = encoded(as_source_rows(records_read, columns, topic="orders", partition=0)).values()
    assert [record[1] for record in records(written)] == [-1, 5]


def test_a_large_batch_is_taken_in_pieces() -> None:
    whole = batch_of(value=pa.array([b"x" * 1000] * 100))
    assert [piece.num_rows for piece in pieces(whole, 30_000)] == [25, 25, 25, 25]
    assert [piece.num_rows for piece in pieces(whole, 1)] == [1] * 100
    assert [piece.num_rows for piece in pieces(whole, 1 << 30)] == [100]


def test_a_task_that_asks_brokers_for_a_topic_shows_the_credentials_of_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []

    class Brokers:
        async def topic_facts(self, names: Iterable[str]) -> dict[str, TopicFacts]:
            return {name: TOPICS[name] for name in names}

    @asynccontextmanager
    async def connected(brokers: str, credentials: Iterable[tuple[str, str]] = ()) -> AsyncIterator[Brokers]:
        shown.append((brokers, dict(credentials)))
        yield Brokers()

    monkeypatch.setattr(sink_brokers, "connected", connected)
    options = parse_sink_options({"brokers": "https://b1", "bucket": tmp_path.as_uri(), "caFile": "ca.pem", "apiKeyFile": "key"})
    rows = batch_of(value=pa.array([b"v", b"w"]), topic=pa.array(["orders", "payments"]))
    with BucketThread(options.bucket) as bucket:
        files = Staging(bucket, options, {}, "0f" * 16, 0).stage(iter([rows]))
    assert {where.topic for file in files for where, _ in file.records} == {"orders", "payments"}
    assert shown == [("https://b1", {"ca_file": "ca.pem", "api_key_file": "key"})]


# ── staged files ──


def _stamp_of(whole: bytes, batch: bytes) -> range:
    """Offset and leader epoch, which a batch's own checksum leaves out, since brokers set them."""
    return range(whole.index(batch), whole.index(batch) + 16)


def test_a_staged_file_returns_its_batches_and_detects_changes() -> None:
    made = encoded(batch_of(key=pa.array(["a", "b", "c"]), value=pa.array(["1", "2", "3"])))
    file, body = encode_file("spark/x", sorted(made.items()))
    whole = b"".join(body)
    assert len(whole) == file.size_bytes
    opened = dict(open_file(file, whole))
    assert {where: [bytes(batch) for batch, _ in batches] for where, batches in opened.items()} == {
        where: [batch for batch, _ in batches] for where, batches in made.items()
    }
    assert dict(file.records) == {where: 1 if len(records(batches)) == 1 else 2 for where, batches in made.items()}
    stamps = {at for where, batches in opened.items() for batch, _ in batches for at in _stamp_of(whole, bytes(batch))}
    for at in sorted(set(range(0, len(whole), 3)) - stamps):
        changed = bytearray(whole)
        changed[at] ^= 0x40
        with pytest.raises(Corrupt):
            open_file(file, changed)
    with pytest.raises(Corrupt):
        open_file(file, whole[:-1])


def test_a_batch_has_a_producer_id_derived_from_its_write_and_none_that_brokers_assign() -> None:
    producer = producer_of("w", 40_000, "t")
    assert producer == producer_of("w", 40_000, "t")
    assert DERIVED_IDS <= producer.producer_id < IDEMPOTENCY_KEY_IDS
    assert producer.epoch == 40_000 % 2**15
    assert producer_of("w", 40_001, "t").producer_id == producer.producer_id
    assert len({producer_of("w", batch, "t").producer_id for batch in (0, 2**15, 2**16)}) == 3
    assert len({producer_of(write, 0, topic).producer_id for write in "vw" for topic in "tu"}) == 4
    (((batch, _), *_),) = encoded(batch_of(value=pa.array(["v"]))).values()
    sent = sequenced(batch, parse_whole(batch), producer, 2**31 + 5)
    header = parse_whole(sent)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (producer.producer_id, producer.epoch, 5)
    assert [record[3] for record in iterate_records(sent, decompressed_bytes_max=BYTES_MAX)] == [b"v"]
