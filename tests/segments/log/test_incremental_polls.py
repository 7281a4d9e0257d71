"""A long poll that looks up only the partitions with news answers as one that looks up all of them each time."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from metadata.errors import NoLeader, OutOfRange, TidelogError
from metadata.model import LeaderEpoch, TopicPartition
from segments.history.manifest import no_manifest
from segments.history.manifest_edits import with_log_start
from segments.log.session_log import FetchTarget, SessionLog
from segments.read.log_reader import FetchResult, LogReader
from segments.recovery.recovered_partition import RecoveredPartition, empty_partition
from tests.kit.segments.batches import EPOCH, batch_of, partition_of
from tests.kit.segments.manifests import TOPIC, writer_of
from tests.kit.segments.scripted_store import ScriptedStore
from tests.kit.segments.serving import EVERYTHING, SETTINGS, bucket, now_s, produce, serving
from tests.simulation.virtual_loop import run

PARTITIONS = [partition_of(number) for number in range(4)]
AT_ONCE = replace(SETTINGS, linger_ms=0)
WAIT_MS = 60_000


def empty(partition: TopicPartition) -> RecoveredPartition:
    return empty_partition(partition, SETTINGS, topic=TOPIC)


def leading(store: ScriptedStore, partitions: list[TopicPartition] = PARTITIONS) -> Any:
    return serving(store, AT_ONCE, recovered=tuple(map(empty, partitions)))


def trim(log: SessionLog, partition: TopicPartition) -> None:
    """Raises the log start to the end of what is committed, as the adoption of a compactor's manifest does."""
    led = log.partitions.get(partition)
    if led is None:
        return
    before = led.history.manifest if led.history is not None else no_manifest(partition)
    if before.log_start_offset < led.log.high_watermark:
        log.manifests.adopt(with_log_start(before, led.log.high_watermark, writer=writer_of(9), now_ms=0))


def polling(log: SessionLog, targets: list[FetchTarget], **how: Any) -> asyncio.Task[list[FetchResult | TidelogError]]:
    return asyncio.create_task(log.reads.fetch(targets, **({"bytes_max": EVERYTHING, "wait_ms_max": WAIT_MS} | how)))


def said(answers: list[FetchResult | TidelogError]) -> list[object]:
    return [type(answer) if isinstance(answer, TidelogError) else answer for answer in answers]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0.01)


_acts = st.tuples(
    st.sampled_from(["produce", "produce", "produce", "trim", "stop reads", "resume", "drop", "lead"]), st.integers(0, 3)
)


@hypothesis_settings(deadline=None, max_examples=60)
@given(
    acts=st.lists(_acts, max_size=25),
    offsets=st.lists(st.sampled_from([2, 2, 2, 0, 1]), min_size=5, max_size=5),
    bytes_min=st.sampled_from([1, 1, 150, 400]),
    bytes_max=st.sampled_from([1, 200, EVERYTHING]),
)
def test_whatever_happens_while_it_waits_it_answers_what_a_look_at_everything_finds(
    acts: list[tuple[str, int]], offsets: list[int], bytes_min: int, bytes_max: int
) -> None:
    async def main() -> None:
        async with leading(bucket()) as log:
            for partition in PARTITIONS:
                await produce(log, batch_of(b"a", b"b"), partition=partition)
            asked = [*PARTITIONS, PARTITIONS[0]]  # a client may name one twice
            targets = [FetchTarget(partition, offset, bytes_max) for partition, offset in zip(asked, offsets, strict=True)]
            poll = polling(log, targets, bytes_max=bytes_max, bytes_min=bytes_min)

            async def compared() -> bool:
                """Compares the answer of the poll, if it has one by now."""
                await settle()
                if poll.done():
                    assert said(await poll) == said(await log.reads.fetch(targets, bytes_max=bytes_max, bytes_min=0))
                return poll.done()

            epoch = EPOCH
            for act, number in acts:
                waits = not await compared()
                partition = PARTITIONS[number]
                if act == "produce" and partition in log.partitions:
                    await produce(log, batch_of(b"c"), partition=partition)
                elif act == "trim":
                    trim(log, partition)
                elif act == "stop reads":
                    log.partitions.stop_reads([partition])
                elif act == "resume":
                    log.partitions.resume(partition)
                elif act == "drop":
                    log.stop_leading(partition)
                elif act == "lead" and partition not in log.partitions:
                    epoch = LeaderEpoch(epoch + 1)
                    log.lead(empty(partition), epoch)
                if waits:
                    await compared()
                if poll.done():
                    poll = polling(log, targets, bytes_max=bytes_max, bytes_min=bytes_min)
            if not await compared():  # at its end it answers without news, from what it knows
                expected = await log.reads.fetch(targets, bytes_max=bytes_max, bytes_min=0)
                await asyncio.sleep(WAIT_MS / 1000)
                assert said(await poll) == said(expected)

    run(main())


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[TopicPartition]:
    """Counts the look-ups of each partition from now on."""
    lookups: Counter[TopicPartition] = Counter()
    look_up = LogReader._look_up

    def counting(self: LogReader, led: Any, target: FetchTarget, *how: Any) -> Any:
        lookups[target.partition] += 1
        return look_up(self, led, target, *how)

    monkeypatch.setattr(LogReader, "_look_up", counting)
    return lookups


def test_a_commit_lets_a_poll_of_many_partitions_look_up_one(monkeypatch: pytest.MonkeyPatch) -> None:
    partitions = [partition_of(number) for number in range(100)]

    async def main() -> None:
        async with leading(bucket(), partitions) as log:
            lookups = counted(monkeypatch)
            size = len(batch_of(b"v"))
            poll = polling(log, [FetchTarget(partition, 0, EVERYTHING) for partition in partitions], bytes_min=2 * size)
            await settle()
            assert lookups.total() == len(partitions)
            lookups.clear()
            await produce(log, partition=partitions[70])
            await settle()
            assert lookups == {partitions[70]: 1}
            lookups.clear()
            await produce(log, partition=partitions[3])
            answers = await poll
            assert lookups == {partitions[3]: 1, partitions[70]: 1}, "what has records, too: the answer takes them in order"
            assert [at for at, answer in enumerate(answers) if isinstance(answer, FetchResult) and answer.batches] == [3, 70]

    run(main())


def test_a_poll_that_ends_without_news_looks_up_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with leading(bucket()) as log:
            lookups = counted(monkeypatch)
            began_s = now_s()
            await polling(log, [FetchTarget(partition, 0, EVERYTHING) for partition in PARTITIONS], wait_ms_max=500)
            assert (lookups.total(), now_s()) == (len(PARTITIONS), began_s + 0.5)

    run(main())


@pytest.mark.parametrize("happening", ["stop reads", "drop"])
def test_a_partition_that_is_served_no_more_ends_the_wait(happening: str) -> None:
    async def main() -> None:
        async with leading(bucket()) as log:
            poll = polling(log, [FetchTarget(partition, 0, EVERYTHING) for partition in PARTITIONS])
            await settle()
            if happening == "stop reads":
                log.partitions.stop_reads([PARTITIONS[2]])
            else:
                log.stop_leading(PARTITIONS[2])
            began_s = now_s()
            answers = await poll
            assert (type(answers[2]), now_s()) == (NoLeader, began_s)
            assert [type(answer) for answer in answers].count(NoLeader) == 1

    run(main())


def test_a_trim_beyond_the_offset_of_a_waiting_poll_is_out_of_range_at_once() -> None:
    async def main() -> None:
        async with leading(bucket()) as log:
            await produce(log, partition=PARTITIONS[1])
            poll = polling(log, [FetchTarget(PARTITIONS[1], 0, EVERYTHING)], bytes_min=1000)
            await settle()
            trim(log, PARTITIONS[1])
            began_s = now_s()
            assert (said(await poll), now_s()) == ([OutOfRange], began_s)

    run(main())


def test_a_log_start_that_rises_to_the_end_is_in_the_answer_at_the_end_of_the_wait() -> None:
    async def main() -> None:
        async with leading(bucket()) as log:
            await produce(log, partition=PARTITIONS[1])
            poll = polling(log, [FetchTarget(PARTITIONS[1], 1, EVERYTHING)])
            await settle()
            trim(log, PARTITIONS[1])
            [answer] = await poll
            assert isinstance(answer, FetchResult)
            assert (answer.log_start_offset, answer.high_watermark, answer.batches) == (1, 1, [])

    run(main())


def test_a_poll_of_a_partition_that_is_led_again_in_a_later_epoch_learns_of_the_new_epoch() -> None:
    async def main() -> None:
        async with leading(bucket()) as log:
            target = FetchTarget(PARTITIONS[0], 0, EVERYTHING)
            poll = polling(log, [target, target._replace(partition=PARTITIONS[1])], wait_ms_max=1000)
            await settle()
            log.stop_leading(PARTITIONS[0])
            log.lead(empty(PARTITIONS[0]), LeaderEpoch(EPOCH + 1))
            await settle()
            answers = await poll
            assert [answer.leader_epoch for answer in answers if isinstance(answer, FetchResult)] == [EPOCH + 1, EPOCH]

    run(main())


def test_a_cancelled_poll_of_many_partitions_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with leading(bucket()) as log:
            poll = polling(log, [FetchTarget(partition, 0, EVERYTHING) for partition in PARTITIONS])
            await settle()
            assert log.reads.readers_waiting == len(PARTITIONS)
            poll.cancel()
            await asyncio.wait((poll,))
            assert log.reads.readers_waiting == 0

    run(main())
