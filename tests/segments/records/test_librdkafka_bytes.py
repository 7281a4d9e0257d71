"""What librdkafka writes is read here, written here byte for byte the same, and the other way round, under every codec."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from segments.records.batch import BATCH_OVERHEAD_BYTES, check_produced, parse_header, split_batches
from segments.records.batch_kernel import NewRecordTuple
from segments.records.columns import decode_batches, encode_batch, encode_records, iterate_records
from segments.records.compression import Codec
from segments.records.header import BatchHeader
from tests.kit.segments.fake_kafka_broker import PRODUCER_EPOCH, PRODUCER_ID, TOPIC, fake_kafka_broker
from tests.kit.segments.record_strategies import TIMESTAMP_MS, as_read

pytestmark = pytest.mark.slow

BOUND = 1 << 22
RECORDS: list[NewRecordTuple] = [
    (b"key", b"value", (), TIMESTAMP_MS),
    (None, b"no key", (), TIMESTAMP_MS + 5),
    (b"tombstone", None, (), TIMESTAMP_MS - 3),
    (b"", b"", (("empty", b""), ("null", None), ("twice", b"1"), ("twice", b"1")), TIMESTAMP_MS),
    (b"k" * 100, b"v" * 5000, (("ключ", b"\x00\xff"),), 1),
    *((b"carrier-%d" % (row % 7), b'{"flight":%d,"delay":%d}' % (row, row % 97), (), TIMESTAMP_MS + row) for row in range(3000)),
]


def produced_by_librdkafka(**settings: Any) -> list[bytes]:
    with fake_kafka_broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.address, "linger.ms": 200, "log_level": 0, **settings})
        for key, value, headers, timestamp_ms in RECORDS:
            producer.produce(TOPIC, value=value, key=key, headers=list(headers), timestamp=timestamp_ms, partition=0)
        assert producer.flush(20) == 0
        return broker.produced


def encoded_here(batch: bytes, header: BatchHeader) -> tuple[bytes, bytes]:
    """The batch's records encoded again, from tuples and from columns."""
    knobs: dict[str, Any] = {
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
    }
    records = iterate_records(batch, decompressed_bytes_max=BOUND)
    columns = decode_batches([batch], decompressed_bytes_max=BOUND)
    return (
        encode_records([(key, value, headers, time) for _, time, key, value, headers in records], **knobs),
        encode_batch(
            columns.column("key"),
            columns.column("value"),
            headers=columns.column("headers"),
            timestamps_ms=columns.column("timestamp").cast(pa.int64()).to_numpy(),
            **knobs,
        ),
    )


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
def test_uncompressed_the_bytes_are_librdkafkas(idempotent: bool) -> None:
    batches = produced_by_librdkafka(**{"enable.idempotence": idempotent})
    sequence = 0
    for batch in batches:
        header = check_produced(batch, message_bytes_max=BOUND, decompressed_bytes_max=BOUND)
        assert header.leader_epoch == 0
        assert header.base_offset == 0
        if idempotent:
            assert (header.producer_id, header.producer_epoch, header.base_sequence) == (PRODUCER_ID, PRODUCER_EPOCH, sequence)
        else:
            assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
        assert encoded_here(batch, header) == (batch, batch)
        sequence += header.record_count
    assert sequence == len(RECORDS)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
def test_batches_of_librdkafka_are_taken_and_read_under_every_codec(codec: Codec, idempotent: bool) -> None:
    batches = produced_by_librdkafka(**{"compression.type": codec.name.lower(), "enable.idempotence": idempotent})
    records = []
    for batch in batches:
        header = check_produced(batch, message_bytes_max=BOUND, decompressed_bytes_max=BOUND)
        assert header.codec is codec
        records += iterate_records(batch, decompressed_bytes_max=BOUND)
    assert [(key, value, headers, time) for _, time, key, value, headers in records] == [
        (key, value, tuple(headers), time) for key, value, headers, time in RECORDS
    ]


@pytest.mark.parametrize("codec", list(Codec))
def test_librdkafka_reads_what_is_written_here_under_every_codec(codec: Codec) -> None:
    half = len(RECORDS) // 2
    served = encode_records(RECORDS[:half], codec=codec) + encode_records(RECORDS[half:], codec=codec, base_offset=half)
    assert [parse_header(batch).codec for batch in split_batches(served)] == [codec, codec]
    assert len(served) > BATCH_OVERHEAD_BYTES * 2
    with fake_kafka_broker(served=served) as broker:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": "none",
                "enable.auto.commit": False,
                "check.crcs": True,
                "fetch.wait.max.ms": 10,
                "log_level": 0,
            }
        )
        try:
            consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
            read = [_tuple_of(message) for message in consumer.consume(len(RECORDS), timeout=60)]
        finally:
            consumer.close()
    assert read == as_read(RECORDS)


def _tuple_of(message: Any) -> Any:
    assert message.error() is None
    return message.offset(), message.timestamp()[1], message.key(), message.value(), tuple(message.headers() or ())
