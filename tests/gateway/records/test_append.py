"""Batches are checked where that is cheap, appended at once, and answered by their deadline."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from gateway.concurrency.offload import BoundedExecutor
from gateway.records.append import (
    GZIP_SLOWNESS,
    OPENED_AT_ONCE_BYTES,
    OPENED_IN_THREAD_BYTES,
    AppendOptions,
    AppendTarget,
    LongBatch,
    OpeningBudget,
    append,
    await_outcomes,
    check_at_once,
    check_long,
    check_ready_batch,
    target_named,
)
from gateway.records.partitioning import CheckedBatch
from gateway.topics.names import partition_of
from metadata.errors import DuplicateSequence, InvalidRecord, OutcomeUnknown, OutOfOrderSequence, TooLarge
from segments.byte_budget import Admission
from segments.deadline import Deadline
from segments.log.append_result import UnverifiedRejection
from segments.log.session_log import Acks, PendingAppend, memory_bytes
from segments.partition.producer_state import ONE_SHOT
from segments.records.batch import KeylessRecords, OpenedBatch, open_produced, parse_header
from segments.records.columns import encode_records
from segments.records.compression import Codec
from segments.records.header import BatchHeader
from segments.settings import MIB
from tests.kit.gateway.reported_log import P0, topic
from tests.kit.gateway.small_broker import SmallBroker, with_broker
from tests.kit.segments.batches import batch_of

COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]


def zeros(length: int, codec: Codec) -> bytes:
    return encode_records([(None, bytes(length), (), 0)], codec=codec)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """Of each check: whether it was in a thread, and to how many bytes it might open the batch."""
    opened: list[tuple[bool, int]] = []

    def noted(batch: bytes, *, message_bytes_max: int, decompressed_bytes_max: int) -> OpenedBatch:
        opened.append((threading.current_thread() is not threading.main_thread(), decompressed_bytes_max))
        return open_produced(batch, message_bytes_max=message_bytes_max, decompressed_bytes_max=decompressed_bytes_max)

    monkeypatch.setattr("gateway.records.append.open_produced", noted)
    return opened


def checked(batch: bytes, *, batch_bytes_max: int = 4 * MIB, decompressed_bytes_max: int = 16 * MIB) -> BatchHeader:
    async def check() -> BatchHeader:
        return await check_ready_batch(
            batch, batch_bytes_max=batch_bytes_max, decompressed_bytes_max=decompressed_bytes_max, threads=BoundedExecutor(1)
        )

    return asyncio.run(check())


# ── where a batch is checked ────────────────────────────────────────────────────────────────────────────────────────────


def at_once_max(codec: Codec) -> int:
    return OPENED_AT_ONCE_BYTES // GZIP_SLOWNESS if codec is Codec.GZIP else OPENED_AT_ONCE_BYTES


def opening_to_much(codec: Codec) -> bytes:
    """A batch that is short enough to be opened at once, and opens to too much for that."""
    batch = zeros(4 * MIB, codec)
    assert 2 * len(batch) < at_once_max(codec)
    return batch


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_short_batch_that_opens_to_much_is_opened_in_a_thread(codec: Codec, opened: list[tuple[bool, int]]) -> None:
    batch = opening_to_much(codec)
    assert checked(batch) == parse_header(batch)
    assert opened == [(False, at_once_max(codec)), (True, 16 * MIB)]


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_short_batch_that_opens_to_little_is_checked_at_once(codec: Codec, opened: list[tuple[bool, int]]) -> None:
    batch = zeros(at_once_max(codec) // 2, codec)
    assert checked(batch) == parse_header(batch)
    assert opened == [(False, at_once_max(codec))]


def test_a_longer_compressed_batch_is_checked_in_a_thread(opened: list[tuple[bool, int]]) -> None:
    batch = encode_records([(None, Random(at).randbytes(1000).hex().encode(), (), at) for at in range(100)], codec=Codec.GZIP)
    assert 2 * len(batch) > at_once_max(Codec.GZIP)
    assert checked(batch) == parse_header(batch)
    assert opened == [(True, 16 * MIB)]


@pytest.mark.parametrize("codec", COMPRESSED)
def test_batches_of_one_request_are_opened_at_once_up_to_the_same_bound_together(codec: Codec) -> None:
    batch = zeros(at_once_max(codec) // 4, codec)
    budget = OpeningBudget()
    check = partial(check_at_once, batch, batch_bytes_max=4 * MIB, decompressed_bytes_max=16 * MIB, budget=budget)
    assert [check() is not None for _ in range(6)] == [True] * 3 + [False] * 3
    plain = batch_of(bytes(MIB))
    assert check_at_once(plain, batch_bytes_max=4 * MIB, decompressed_bytes_max=16 * MIB, budget=budget) == parse_header(plain)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_batches_that_open_to_too_much_are_tried_on_the_loop_once_in_a_request(codec: Codec) -> None:
    bomb, small = zeros(2 * at_once_max(codec), codec), zeros(100, codec)
    budget = OpeningBudget()
    check = partial(check_at_once, batch_bytes_max=4 * MIB, decompressed_bytes_max=16 * MIB, budget=budget)
    assert check(bomb) is None
    assert budget.bytes_max(codec) == 0
    assert check(bomb) is None
    assert check(small) is None, "it goes to the thread as well"


def test_a_thread_checks_batches_until_it_has_opened_so_many_bytes_and_returns_errors_in_their_places() -> None:
    large, damaged = zeros(OPENED_IN_THREAD_BYTES // 2, Codec.ZSTD), bytearray(zeros(100, Codec.ZSTD))
    damaged[-1] ^= 1
    batches = [LongBatch(each, MIB) for each in (bytes(damaged), large, large, large)]
    refused, *headers = check_long(batches, decompressed_bytes_max=16 * MIB)
    assert isinstance(refused, InvalidRecord)
    assert headers == [parse_header(large)] * 2
    [too_large] = check_long([LongBatch(zeros(8 * MIB, Codec.ZSTD), MIB)] * 2, decompressed_bytes_max=8 * MIB)
    assert isinstance(too_large, TooLarge)
    [keyless] = check_long([LongBatch(zeros(100, Codec.ZSTD), MIB, keyed=True)], decompressed_bytes_max=MIB)
    assert isinstance(keyless, KeylessRecords)


def test_a_forwarded_batch_may_have_the_producer_id_of_an_idempotency_key_in_a_thread_too() -> None:
    batch = encode_records(
        [(None, bytes(4 * MIB), (), 0)], codec=Codec.ZSTD, producer_id=ONE_SHOT, producer_epoch=0, base_sequence=0
    )

    def check(*, is_forwarded: bool) -> BatchHeader:
        terms = {"batch_bytes_max": MIB, "decompressed_bytes_max": 16 * MIB}
        return asyncio.run(check_ready_batch(batch, threads=BoundedExecutor(1), is_forwarded=is_forwarded, **terms))

    assert check(is_forwarded=True) == parse_header(batch)
    with pytest.raises(InvalidRecord, match="reserved for Idempotency-Keys"):
        check(is_forwarded=False)


def test_a_batch_that_is_not_compressed_or_too_long_to_be_opened_takes_no_thread(opened: list[tuple[bool, int]]) -> None:
    assert checked(batch_of(bytes(MIB))).record_count == 1
    with pytest.raises(TooLarge, match="message_bytes_max is 20000"):
        checked(zeros(3 * MIB, Codec.LZ4) + bytes(20_000), batch_bytes_max=20_000)
    with pytest.raises(InvalidRecord):
        checked(b"")
    assert [in_thread for in_thread, _ in opened] == [False] * 3


@pytest.mark.parametrize("bytes_max", [OPENED_AT_ONCE_BYTES // 2, 2 * OPENED_AT_ONCE_BYTES])
def test_a_batch_that_opens_to_more_than_the_log_takes_is_refused_with_that_bound(bytes_max: int) -> None:
    with pytest.raises(TooLarge, match=f"takes more than {bytes_max} bytes without its zstd compression"):
        checked(zeros(4 * MIB, Codec.ZSTD), decompressed_bytes_max=bytes_max)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_check_without_a_thread_leaves_what_takes_long_to_the_caller(codec: Codec) -> None:
    short = zeros(at_once_max(codec) // 2, codec)
    check = partial(check_at_once, batch_bytes_max=4 * MIB, decompressed_bytes_max=16 * MIB)
    assert check(short) == parse_header(short)
    assert check(opening_to_much(codec)) is None
    assert check(short, budget=OpeningBudget(2 * len(short) - 1)) is None
    with pytest.raises(InvalidRecord, match="reserved for Idempotency-Keys"):
        check(batch_of(b"a", producer_id=ONE_SHOT, producer_epoch=1, base_sequence=0))


@pytest.mark.slow
def test_a_listener_appends_without_a_task_and_learns_of_the_commit_by_a_callback(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker) -> None:
        log, target, batch = broker.local_log, target_named(broker, "orders"), batch_of(b"a")
        header = check_at_once(batch, batch_bytes_max=target.batch_bytes_max, decompressed_bytes_max=MIB)
        assert header is not None
        decided: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        async with log.admit(memory_bytes(len(batch)), timeout_s=1) as admission:
            ready = CheckedBatch(partition_of(target.topic, 0), batch, header)
            (pending,) = append(log, target, [ready], admission, AppendOptions(Acks.ALL, Deadline.after(60)))
        assert isinstance(pending, PendingAppend)
        assert pending.segment is not None
        pending.segment.outcome.add_done_callback(lambda outcome: decided.set_result(outcome.result()))
        assert await asyncio.wait_for(decided, 60) is None
        assert pending.appended.base_offset == 0

    with_broker(tmp_path, scenario)


def test_a_batch_behind_a_repeat_that_is_in_the_log_already_is_appended_and_none_behind_a_refused_one() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    repeat, refused = UnverifiedRejection(DuplicateSequence("written long ago"), never), OutOfOrderSequence("a gap")
    outcomes = iter([repeat, "appended", refused])
    log: Any = SimpleNamespace(append=Mock(side_effect=outcomes))
    target, admission = AppendTarget(topic(), MIB, False, None, MIB), cast(Admission, None)
    batches = [CheckedBatch(P0, batch, parse_header(batch)) for batch in [batch_of(b"a")] * 4]
    found: list[Any] = append(log, target, batches, admission, AppendOptions(Acks.ALL, Deadline(0, 30)))
    assert found == [repeat, "appended", refused, refused]


# ── a commit that does not come ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_commit_timeout_names_the_requested_time_and_not_the_time_that_was_left(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker) -> None:
        broker.store.hold()
        partition = partition_of(broker.topic_cache.get("orders"), 0)
        batch = batch_of(b"a")
        log, ended_s = broker.local_log, asyncio.get_running_loop().time() - 5
        async with log.admit(memory_bytes(len(batch)), timeout_s=1) as admission:
            pending = log.append(partition, batch, parse_header(batch), admission, deadline_s=ended_s)
        long_ago: dict[str, Any] = {"acks": Acks.ALL, "deadline": Deadline(ended_s, 30)}
        (late,) = await await_outcomes(log, [pending], **long_ago)
        assert isinstance(late, OutcomeUnknown)
        assert late.message == "the bucket did not confirm the records within 30 s; they may still be committed"
        broker.store.let_go()
        committed = await log.outcome(pending, acks=Acks.ALL, deadline=Deadline.after(10))
        assert await await_outcomes(log, [pending], **long_ago) == [committed], "a known outcome is returned, however late"

    with_broker(tmp_path, scenario)


# ── a refusal that is not certain ───────────────────────────────────────────────────────────────────────────────────────


def test_a_check_that_outlasts_the_deadline_leaves_the_retriable_error_to_the_producer() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        doubted = [UnverifiedRejection(OutOfOrderSequence("a gap"), never) for _ in range(3)]
        ended_s = asyncio.get_running_loop().time()
        log: Any = None  # nothing was appended, so the log is not used
        found = await await_outcomes(log, doubted, acks=Acks.ALL, deadline=Deadline(ended_s, 30))
        assert found == doubted
        assert all(error.retryable and error.nothing_was_written for error in doubted)

    asyncio.run(scenario())
