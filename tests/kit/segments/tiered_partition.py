"""A partition whose records lie in Parquet, in segments and in the hot pool, on a scripted bucket; under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import pyarrow as pa

from metadata.errors import TidelogError
from metadata.model import LeaderEpoch, Offset, SegmentSeq, SessionId, TopicPartition
from segments.bucket.layout import history_file_key, history_file_name
from segments.byte_budget import ByteBudget
from segments.history.index import HistoryIndex
from segments.history.manifest import EpochStart, Manifest, no_manifest
from segments.history.parquet_file import ParquetSettings
from segments.object_store.interface import Buffer
from segments.partition.leader_partitions import LeaderPartition
from segments.partition.partition_log import PartitionLog
from segments.partition.producer_state import ProducerStates
from segments.read.disk_cache import DiskCache
from segments.read.log_reader import FetchResult, FetchTarget, LogReader
from segments.read.read_cache import ReadCache
from segments.read.reader_notifier import News
from segments.read.record_lookup import RecordLookup
from segments.read.tail_cache import BATCH_MEMORY_BYTES, TailCache
from segments.records.batch import split_batches
from segments.records.batch_kernel import RecordTuple
from segments.records.columns import decode_batches, iterate_records
from segments.wal.run_index import RunIndex
from segments.wal.segment_file import StampedBatch
from tests.kit.segments.batches import EPOCH, ORDERS, segment_of, stamped
from tests.kit.segments.history_files import write_history
from tests.kit.segments.scripted_store import ScriptedStore
from tests.simulation.virtual_loop import run

T = TypeVar("T")
SESSION = SessionId(7)
TOPIC = "orders"
EVERYTHING = 1 << 30


def tuples_in(buffers: Sequence[Buffer], *, from_offset: int = 0) -> list[RecordTuple]:
    """Every record in whole batches, as it is read; those before `from_offset` are skipped."""
    records: list[RecordTuple] = []
    for batch in split_batches(b"".join(buffers)):
        records += iterate_records(batch, decompressed_bytes_max=1 << 24)
    return [record for record in records if record[0] >= from_offset]


class TieredPartition:
    """`batches` in order, the first `compacted` of them in Parquet, the last `hot` in the hot pool, and in segments as well."""

    def __init__(
        self,
        batches: Sequence[bytes],
        *,
        compacted: int,
        hot: int = 0,
        file_batches: int = 1_000,
        group_bytes: int = 200,
        keeps: Callable[[int], bool] = lambda _: True,
        epoch_batches: int = 1_000,
        segment_batches: int = 1,
        cold_bytes_max: int = 1 << 20,
        reads: ByteBudget | None = None,
        disk_folder: Path | None = None,
        partition: TopicPartition = ORDERS,
        store: ScriptedStore | None = None,
    ) -> None:
        """`file_batches`, `segment_batches`: in each file, in each segment; `epoch_batches`: of each leader; `keeps`: whether key
        compaction has kept the record of this offset, if it is in Parquet."""
        self.partition = partition
        self.session = SessionId(SESSION + partition.partition)
        self.store = store or ScriptedStore()
        self.stamped: list[StampedBatch] = []
        at = 0
        for number, batch in enumerate(batches):
            self.stamped.append(stamped(batch, at, leader_epoch=EPOCH + number // epoch_batches))
            at = self.stamped[-1].last_offset + 1
        self.end = at
        self.compacted_to = self.stamped[compacted].base_offset if compacted < len(batches) else Offset(at)
        self.hot_start = self.stamped[-hot].base_offset if hot else Offset(at)
        self.epochs = [LeaderEpoch(EPOCH + number // epoch_batches) for number in range(len(batches))]
        self.records = [
            record
            for record in tuples_in([part for batch in self.stamped for part in (batch.stamp, batch.rest)])
            if record[0] >= self.compacted_to or record[0] >= self.hot_start or keeps(record[0])
        ]
        self.keeps = keeps
        self.runs = RunIndex()
        self._put_segments(compacted, segment_batches)
        self.manifest = self._put_history(compacted, file_batches, group_bytes)
        log = PartitionLog(
            self.partition,
            leader_epoch=LeaderEpoch(EPOCH + len(batches) // epoch_batches),
            log_start_offset=Offset(0),
            end_offset=Offset(at),
            producers=ProducerStates(producers_max=1, expiry_ms=1),
        )
        self.led = LeaderPartition(log, self.runs, HistoryIndex(self.manifest, TOPIC))
        newest = self.stamped[len(batches) - hot :]
        self.hot = TailCache(sum(batch.size_bytes + BATCH_MEMORY_BYTES for batch in newest))
        if newest:
            self.hot.add(self.partition, newest)
        self.reads = reads or ByteBudget(1 << 20)
        self.cold_bytes_max = cold_bytes_max
        self.disk_folder = disk_folder
        self.pool: ReadCache
        """While there is a reader."""
        self.adopted = 0
        self.newest: Manifest | None = None
        """What a search for a newer manifest finds."""

    def _put_segments(self, compacted: int, segment_batches: int) -> None:
        at, seq = compacted, 0
        while at < len(self.stamped):
            end = at
            while end < len(self.stamped) and end - at < segment_batches and self.epochs[end] == self.epochs[at]:
                end += 1
            segment = segment_of(self.session, seq, [(self.partition, self.stamped[at:end])], leader_epoch=self.epochs[at])
            self.store.plant(f"wal/{self.session:016x}/{seq:016x}", b"".join(segment.body))
            self.runs.add(segment.footer.runs[0], session=self.session, seq=SegmentSeq(seq))
            at, seq = end, seq + 1

    def _put_history(self, compacted: int, file_batches: int, group_bytes: int) -> Manifest:
        files = []
        for at in range(0, compacted, file_batches):
            of_file = self.stamped[at : min(at + file_batches, compacted)]
            columns = self.columns(of_file)
            if columns.num_rows == 0:
                continue
            base, last = of_file[0].base_offset, of_file[-1].last_offset
            name = history_file_name(base, last, 1, f"{at:016x}")
            settings = ParquetSettings(row_group_bytes=group_bytes)
            written = write_history(
                [columns], name=name, topic=TOPIC, partition=0, base_offset=base, last_offset=last, settings=settings
            )
            self.store.plant(history_file_key(TOPIC, self.partition, name), bytes(written.body))
            files.append(written.file)
        starts: dict[LeaderEpoch, Offset] = {}
        for batch, epoch in zip(self.stamped[:compacted], self.epochs, strict=False):
            starts.setdefault(epoch, batch.base_offset)
        return msgspec.structs.replace(
            no_manifest(self.partition),
            version=1,
            compacted_to=self.compacted_to,
            files=tuple(files),
            epochs=tuple(EpochStart(epoch, start) for epoch, start in starts.items()),
        )

    def columns(self, batches: Sequence[StampedBatch]) -> pa.RecordBatch:
        """What of these batches is in Parquet."""
        columns = decode_batches([b"".join((batch.stamp, batch.rest)) for batch in batches], decompressed_bytes_max=1 << 24)
        return columns.filter(pa.array([self.keeps(offset) for offset in columns.column("offset").to_pylist()], pa.bool_()))

    @property
    def file_keys(self) -> list[str]:
        return [history_file_key(TOPIC, self.partition, file.name) for file in self.manifest.files]

    def damage(self, key: str, at: int) -> None:
        """Changes one byte of an object."""
        body = bytearray(self.store.content(key))
        body[at] ^= 0xFF
        self.store.plant(key, bytes(body))

    async def adopt_newest(self, _: object) -> bool:
        self.adopted += 1
        if self.newest is None:
            return False
        self.led.history = HistoryIndex(self.newest, TOPIC)
        return True

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def with_reader(self, work: Callable[[LogReader], Awaitable[T]]) -> T:
        async def main() -> T:
            async with asyncio.TaskGroup() as tasks:
                disk = None if self.disk_folder is None else DiskCache(self.disk_folder, bytes_max=1 << 20)
                self.pool = ReadCache(
                    self.store,
                    bytes_max=self.cold_bytes_max,
                    reads=self.reads,
                    read_timeout_s=1000,
                    spawn=tasks.create_task,
                    disk=disk,
                )
                reader = LogReader(self.hot, self.pool, adopt_newest=self.adopt_newest)
                self.lookup = RecordLookup(self.hot, self.pool, self.adopt_newest, decompressed_bytes_max=1 << 24)
                try:
                    return await work(reader)
                except TidelogError as error:  # not through the task group, which would wrap it
                    failed.append(error)
            raise failed[0]

        failed: list[TidelogError] = []
        return run(main())

    async def fetch(self, reader: LogReader, offset: int, *, bytes_max: int = EVERYTHING, wait_ms_max: float = 0) -> FetchResult:
        (answer,) = await reader.fetch(
            [FetchTarget(self.partition, offset, bytes_max)],
            lambda _: self.led,
            News(),
            bytes_max=bytes_max,
            bytes_min=1,
            wait_ms_max=wait_ms_max,
        )
        if isinstance(answer, TidelogError):
            raise answer
        return answer

    def read(self, offset: int, *, bytes_max: int = EVERYTHING) -> FetchResult:
        return self.with_reader(lambda reader: self.fetch(reader, offset, bytes_max=bytes_max))

    async def read_on(self, reader: LogReader, offset: int, *, bytes_max: int) -> list[RecordTuple]:
        """Every record from `offset` to the end, by as many fetches as it takes."""
        read: list[RecordTuple] = []
        while offset < self.end:
            fetched = await self.fetch(reader, offset, bytes_max=bytes_max)
            assert fetched.next_offset > offset, "each fetch gets on"
            assert fetched.size_bytes == sum(map(len, fetched.batches))
            read += tuples_in(fetched.batches, from_offset=offset)
            offset = fetched.next_offset
        return read
