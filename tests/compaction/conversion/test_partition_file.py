"""From batches to a file, whatever the batches: the same records, by an order-free checksum that never saw the columns."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.conversion import partition_file
from compaction.conversion.partition_file import CompactedRuns, DamagedRun, EncodingSettings, compact_runs
from compaction.conversion.scratch import StoredRun
from metadata.errors import Corrupt
from metadata.model import LeaderEpoch, Offset, SegmentSeq, SessionId
from segments.bucket.layout import history_file_name
from segments.history.manifest import Manifest, no_manifest
from segments.history.parquet_file import ParquetSettings, read_columns
from segments.records import columns as records_columns
from segments.records.batch import stamp
from segments.records.columns import OpenBatch, decode_opened, encode_records
from segments.records.compression import Codec
from tests.kit.segments.batches import ORDERS

SETTINGS = EncodingSettings(ParquetSettings(row_group_bytes=300), 1 << 20, 1 << 20, 100, 1 << 40)
# Key, value, headers, timestamp.
Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]

short = st.none() | st.binary(max_size=6)
rows = st.lists(
    st.tuples(short, short, st.lists(st.tuples(st.text(max_size=3), short), max_size=3), st.integers(-1, 2**40)),
    min_size=1,
    max_size=5,
)
batches = st.lists(st.tuples(rows, st.sampled_from(Codec), st.integers(-1, 4)), min_size=1, max_size=8)


class Runs:
    """Batches, each a run of its own, at their offsets."""

    def __init__(self) -> None:
        self.stored: list[StoredRun] = []
        self.bodies: dict[int, bytes] = {}
        self.end = 0
        self.sequences: dict[int, int] = {}

    def add(self, records: Sequence[Row], codec: Codec = Codec.NONE, producer: int = -1, *, epoch: int = 1) -> None:
        sequence = self.sequences.get(producer, 0) if producer >= 0 else -1
        epoch_of_producer = 0 if producer >= 0 else -1
        batch = encode_records(records, codec=codec, producer_id=producer, producer_epoch=epoch_of_producer, base_sequence=sequence)
        self.sequences[producer] = sequence + len(records)
        body = stamp(batch, base_offset=self.end, leader_epoch=epoch) + batch[16:]
        last = self.end + len(records) - 1
        seq = SegmentSeq(len(self.stored))
        self.stored.append(StoredRun(Offset(self.end), Offset(last), 0, len(body), LeaderEpoch(epoch), 0, SessionId(7), seq, 40))
        self.bodies[seq] = body
        self.end = last + 1

    def compacted(self, manifest: Manifest | None = None) -> CompactedRuns:
        return compact_runs(
            manifest or no_manifest(ORDERS),
            self.stored,
            lambda run: self.bodies[run.seq],
            topic="orders",
            name=lambda base, last: history_file_name(base, last, 1, "0" * 16),
            settings=SETTINGS,
            now_ms=0,
        )


def rows_in(made: CompactedRuns) -> list[tuple[int, Row]]:
    assert made.written is not None
    found: list[tuple[int, Row]] = []
    for columns in read_columns(made.written.body, made.written.file):
        for row in columns.to_pylist():
            headers = [(header["key"], header["value"]) for header in row["headers"]]
            time = pa.scalar(row["timestamp"], pa.timestamp("ms", tz="UTC")).value
            found.append((row["offset"], (row["key"], row["value"], headers, time)))
    return found


@pytest.mark.slow
@settings(max_examples=60)
@given(batches, st.integers(0, 45), st.sampled_from([1, 50, 1 << 20]))
def test_every_record_at_or_above_the_log_start_is_in_the_file_as_it_was(
    history: list[tuple[list[Row], Codec, int]], log_start: int, at_once: int
) -> None:
    runs = Runs()
    expected: list[tuple[int, Row]] = []
    for records, codec, producer in history:
        expected += enumerate(records, start=runs.end)
        runs.add(records, codec, producer)
    manifest = msgspec.structs.replace(no_manifest(ORDERS), log_start_offset=Offset(log_start))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_file, "DECODED_AT_ONCE", at_once)
        made = runs.compacted(manifest)
    expected = [(offset, row) for offset, row in expected if offset >= log_start]
    assert made.compacted_to == runs.end
    assert made.record_count == len(expected)
    assert (rows_in(made) if made.written is not None else []) == expected
    assert {one.producer_id for one in made.producers} == {producer for _, _, producer in history if producer >= 0}


ROW: Row = (b"k", b"v", [], 5)


def test_runs_go_on_behind_a_gap_below_the_log_start_and_not_behind_one_above_it() -> None:
    runs = Runs()
    runs.end = 8
    runs.add([ROW, ROW])
    made = runs.compacted(msgspec.structs.replace(no_manifest(ORDERS), compacted_to=Offset(5), log_start_offset=Offset(8)))
    assert (made.compacted_to, made.record_count, rows_in(made)) == (10, 2, [(8, ROW), (9, ROW)])
    with pytest.raises(DamagedRun, match="5 comes next"):
        runs.compacted(msgspec.structs.replace(no_manifest(ORDERS), compacted_to=Offset(5), log_start_offset=Offset(7)))


def test_damage_names_the_run_and_what_lies_before_it() -> None:
    runs = Runs()
    for _ in range(3):
        runs.add([ROW])
    runs.bodies[2] = runs.bodies[2][:-1] + b"w"
    with pytest.raises(DamagedRun) as found:
        runs.compacted()
    assert found.value.before == 2
    assert found.value.error.details["key"] == runs.stored[2].key


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"base_offset": 5}, "comes next"),
        ({"size_bytes": 5}, "comes next"),
        ({"leader_epoch": 9}, "the footer says"),
        ({"last_offset": 9}, "the footer says"),
    ],
)
def test_a_run_that_is_not_what_its_footer_says_is_damage(change: dict[str, int], said: str) -> None:
    runs = Runs()
    runs.add([ROW])
    runs.stored[0] = runs.stored[0]._replace(**change)  # type: ignore[arg-type]
    with pytest.raises(DamagedRun, match=said):
        runs.compacted()


def test_a_leader_epoch_that_falls_is_damage() -> None:
    runs = Runs()
    runs.add([ROW], epoch=3)
    runs.add([ROW], epoch=2)
    with pytest.raises(DamagedRun, match="behind records of 3"):
        runs.compacted()


def test_batches_that_shrank_a_thousandfold_are_decoded_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    decode, opened_bytes = decode_opened, list[int]()

    def noted(opened: Sequence[OpenBatch]) -> pa.RecordBatch:
        opened_bytes.append(sum(len(one.section) for one in opened))
        return decode(opened)

    monkeypatch.setattr(partition_file, "decode_opened", noted)
    monkeypatch.setattr(partition_file, "OPENED_AT_ONCE", 1 << 20)
    monkeypatch.setattr(records_columns, "_INT32_MAX", 2 << 20)  # all of them together are more than a column holds
    runs = Runs()
    for _ in range(12):
        runs.add([(b"k", bytes(300_000), [], 5)], Codec.ZSTD)
    assert sum(map(len, runs.bodies.values())) < 10_000
    made = runs.compacted()
    assert made.record_count == 12
    assert len(rows_in(made)) == 12
    assert max(opened_bytes) < (1 << 20) + 301_000


def test_columns_that_lost_something_on_their_way_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = decode_opened

    def forgets_a_key(opened: Sequence[OpenBatch]) -> pa.RecordBatch:
        columns = decode(opened)
        return columns.set_column(3, "key", pa.nulls(columns.num_rows, pa.binary()))

    monkeypatch.setattr(partition_file, "decode_opened", forgets_a_key)
    runs = Runs()
    runs.add([ROW])
    with pytest.raises(Corrupt, match="checksum"):
        runs.compacted()
