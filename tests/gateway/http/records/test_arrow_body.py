from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.http.records.arrow_body import ArrowRecords, parse_arrow, plan_arrow
from gateway.records.partitioning import RECORDS_MAX, Plan, Routing, plan_batches, route_records
from metadata.errors import InvalidArgument, Rejected, TooLarge, UnknownPartition
from metadata.model import TopicId
from segments.records.batch import parse_whole
from segments.records.columns import HEADERS_TYPE, iterate_records

NOW = 1_750_000_000_000
MIB = 1 << 20


def stream(table: pa.Table, *, compression: str | None = None, rows_max: int = 1000) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=rows_max)
    return bytes(sink.getvalue())


def parsed(body: bytes, *, decompressed_bytes_max: int = 64 * MIB) -> ArrowRecords:
    return parse_arrow(body, now_ms=NOW, decompressed_bytes_max=decompressed_bytes_max)


def planned(records: ArrowRecords, *, partition_count: int = 4, partition: int | None = None, batch_bytes_max: int = MIB) -> Plan:
    return plan_arrow(records, routing(partition_count, batch_bytes_max), default_partition=partition)


def routing(partition_count: int, batch_bytes_max: int = MIB) -> Routing:
    return Routing(TopicId("1" * 32), partition_count, 2, batch_bytes_max)


def records_in(plan: Plan) -> dict[int, list[tuple[Any, ...]]]:
    found: dict[int, list[tuple[Any, ...]]] = {}
    for batch in plan.batches:
        assert parse_whole(batch.batch).record_count == batch.header.record_count
        found.setdefault(batch.partition.partition, []).extend(
            record[1:] for record in iterate_records(batch.batch, decompressed_bytes_max=MIB)
        )
    return found


rows = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=6),
        st.none() | st.binary(max_size=40),
        st.none() | st.integers(0, 3),
        st.none() | st.integers(0, 2**41),
        st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=4)), max_size=2),
    ),
    min_size=1,
    max_size=30,
)


@settings(deadline=None)
@given(rows, st.sampled_from([None, "lz4", "zstd"]), st.sampled_from([3, 1000]))
def test_columns_become_the_same_batches_as_tuples(found: list[tuple[Any, ...]], compression: str | None, rows_max: int) -> None:
    keys, values, partitions, timestamps, headers = zip(*found, strict=True)
    table = pa.table(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "partition": pa.array(partitions, pa.int32()),
            "timestamp": pa.array(timestamps, pa.timestamp("ms", tz="UTC")),
            "headers": pa.array([[{"key": k, "value": v} for k, v in one] for one in headers], HEADERS_TYPE),
        }
    )
    by_columns = planned(parsed(stream(table, compression=compression, rows_max=rows_max)))
    tuples = [(key, value, header, NOW if time is None else time) for key, value, _, time, header in found]
    routes = route_records(tuples, partitions, routing(4))
    by_tuples = plan_batches(routes, routing(4), request_bytes=0)
    assert list(by_columns.partitions) == list(by_tuples.partitions)
    assert {batch.partition: batch.batch for batch in by_columns.batches} == {
        batch.partition: batch.batch for batch in by_tuples.batches
    }


def test_a_value_alone_is_enough() -> None:
    plan = planned(parsed(stream(pa.table({"value": ["a", None, "ü"]}))))
    assert records_in(plan) == {2: [(NOW, None, b"a", ()), (NOW, None, None, ()), (NOW, None, "ü".encode(), ())]}


def test_types_that_hold_bytes_are_taken() -> None:
    for kind in (pa.string(), pa.large_string(), pa.large_binary()):
        table = pa.table({"key": pa.array(["k"], kind), "value": pa.array(["v"], kind)})
        assert list(records_in(planned(parsed(stream(table)), partition_count=1)).values()) == [[(NOW, b"k", b"v", ())]]


def test_timestamps_of_any_unit_become_milliseconds() -> None:
    for kind, value in (
        (pa.timestamp("s"), 5),
        (pa.timestamp("us", tz="Europe/Berlin"), 5_000_999),
        (pa.timestamp("ns"), 5_000_000_001),
    ):
        table = pa.table({"value": ["v"], "timestamp": pa.array([value], pa.int64()).cast(kind)})
        assert parsed(stream(table)).timestamps_ms.tolist() == [5000]
    table = pa.table({"value": ["v", "w"], "timestamp": pa.array([7, None], pa.int64())})
    assert parsed(stream(table)).timestamps_ms.tolist() == [7, NOW]


def test_the_partition_of_the_request_holds_for_records_that_ask_for_none() -> None:
    table = pa.table({"key": ["a", "b", "c"], "value": ["1", "2", "3"], "partition": pa.array([None, 3, None], pa.int64())})
    assert list(planned(parsed(stream(table)), partition=1).partitions) == [1, 3, 1]


def test_a_partition_that_the_topic_does_not_have_is_named_with_its_record() -> None:
    for wrong in (4, -1, -(2**63) + 1):
        table = pa.table({"value": ["1", "2"], "partition": pa.array([0, wrong], pa.int64())})
        with pytest.raises(UnknownPartition, match=f"record 1 asks for partition {wrong}"):
            planned(parsed(stream(table)))


def test_no_batch_is_too_large_and_the_order_is_kept() -> None:
    values = [b"%06d" % number for number in range(5000)]
    plan = planned(parsed(stream(pa.table({"value": values}))), batch_bytes_max=10_000)
    assert len(plan.batches) > 5
    assert all(len(batch.batch) <= 10_000 for batch in plan.batches)
    assert [value for _, _, value, _ in records_in(plan)[2]] == values


def test_a_record_that_fits_no_batch_is_refused() -> None:
    with pytest.raises(TooLarge, match="the topic takes 1000"):
        planned(parsed(stream(pa.table({"value": [b"a", b"x" * 2000]}))), batch_bytes_max=1000)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"key": ["a"]}), "no column `value`"),
        (pa.table({"value": ["a"], "offset": [1]}), "'offset' is not known"),
        (pa.table({"value": [1]}), "value is int64; it must be binary or string"),
        (pa.table({"value": ["a"], "key": [1.5]}), "key is double"),
        (pa.table({"value": pa.array(["a"]).dictionary_encode()}), "value is dictionary"),
        (pa.table({"value": pa.array(["a"], pa.string_view())}), "value is string_view"),
        (pa.table({"value": ["a"], "partition": ["0"]}), "partition is string; it must be an integer"),
        (pa.table({"value": ["a"], "timestamp": [1.5]}), "timestamp is double"),
        (pa.table({"value": ["a"], "headers": ["x"]}), "headers is string"),
        (pa.table({"value": ["a"], "headers": pa.array([[("k", b"v")]], pa.map_(pa.string(), pa.binary()))}), "headers is map"),
        (pa.table([["a"], ["b"]], names=["value", "value"]), "two columns"),
        (pa.table({"value": pa.array([], pa.string())}), "no records"),
        (pa.table({"value": ["a"], "partition": pa.array([2**63], pa.uint64())}), "not an Arrow stream"),
        (pa.table({"value": ["a"], "timestamp": pa.array([2**62], pa.timestamp("s"))}), "not an Arrow stream"),
    ],
)
def test_a_table_that_is_no_records_is_refused(table: pa.Table, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        parsed(stream(table))


def test_a_short_body_that_becomes_long_is_refused_before_it_does() -> None:
    body = stream(pa.table({"value": [b"\0" * (8 * MIB)]}), compression="zstd")
    assert len(body) < 10_000
    with pytest.raises(TooLarge, match="without their compression"):
        parsed(body, decompressed_bytes_max=4 * MIB)
    assert len(parsed(body, decompressed_bytes_max=9 * MIB).values) == 1


def test_too_many_records_are_refused() -> None:
    with pytest.raises(TooLarge, match=f"{RECORDS_MAX} are accepted"):
        parsed(stream(pa.table({"value": pa.array([""] * (RECORDS_MAX + 1))}), rows_max=RECORDS_MAX))


def test_strings_that_are_not_utf8_and_offsets_that_lie_are_refused() -> None:
    bad_text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")])
    lying = pa.Array.from_buffers(pa.binary(), 2, [None, pa.py_buffer(np.array([0, 9, 4], np.int32)), pa.py_buffer(b"abcd")])
    for array in (bad_text, lying):
        with pytest.raises(InvalidArgument, match="not an Arrow stream"):
            parsed(stream(pa.table({"value": array})))


@given(st.data())
def test_a_damaged_stream_is_refused_or_read_but_never_breaks_the_broker(data: st.DataObject) -> None:
    table = pa.table({"key": ["a", None], "value": [b"x" * 30, b""], "timestamp": pa.array([1, 2], pa.int64())})
    body = bytearray(stream(table, compression=data.draw(st.sampled_from([None, "lz4", "zstd"]))))
    for _ in range(data.draw(st.integers(1, 5))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(Rejected):
        planned(parsed(bytes(body[: data.draw(st.integers(0, len(body)))]), decompressed_bytes_max=MIB))


def test_a_stream_that_begins_with_records_instead_of_its_schema_is_refused() -> None:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"value": pa.array([b"a"])})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    _, records = pa.ipc.MessageReader.open_stream(sink.getvalue())
    with pytest.raises(InvalidArgument, match="instead of its schema"):
        parse_arrow(records.serialize().to_pybytes(), now_ms=0, decompressed_bytes_max=1 << 20)
