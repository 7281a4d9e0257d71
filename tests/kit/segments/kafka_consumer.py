"""A Kafka consumer of one partition: it reads batches by aiokafka's own code, and moves by them alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise

from aiokafka.consumer.fetcher import READ_UNCOMMITTED, PartitionRecords
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition

from segments.read.log_reader import FetchResult
from segments.records.batch import NO_LEADER_EPOCH, parse_header, split_batches
from segments.wal.run_index import EpochEnd

KafkaRecord = tuple[int, int, bytes | None, bytes | None]


async def consume(
    fetch: Callable[[int], Awaitable[FetchResult]],
    offset: int,
    *,
    end_offset: int,
    end_of_epoch: Callable[[int], EpochEnd] | None = None,
) -> list[KafkaRecord]:
    """Reads every record from `offset` to before `end_offset`; each fetch gets on, or the consumer would stand there for good.

    `end_of_epoch`: what OffsetForLeaderEpoch answers. By it the consumer finds out behind each batch that the log was truncated
    (KIP-320): here it never was.
    """
    read: list[KafkaRecord] = []
    while offset < end_offset:
        fetched = await fetch(offset)
        body = b"".join(fetched.batches_from(offset))
        headers = [parse_header(batch) for batch in split_batches(body)]
        assert all(batch.last_offset + 1 == behind.base_offset for batch, behind in pairwise(headers)), "batches follow each other"
        assert headers, f"a consumer at {offset} moves"
        assert headers[0].last_offset >= offset
        for header in headers:
            if end_of_epoch is not None and header.leader_epoch != NO_LEADER_EPOCH:
                end, behind_it = end_of_epoch(header.leader_epoch), header.last_offset + 1
                assert not end.diverges(last_fetched_epoch=header.leader_epoch, fetch_offset=behind_it), "it was not truncated"
        records = PartitionRecords(TopicPartition("orders", 0), MemoryRecords(body), [], offset, None, None, True, READ_UNCOMMITTED)
        read += [(record.offset, record.timestamp, record.key, record.value) for record in records]
        assert records.next_fetch_offset == headers[-1].last_offset + 1 == fetched.next_offset
        assert offset < fetched.next_offset <= fetched.high_watermark
        offset = records.next_fetch_offset
    return read
