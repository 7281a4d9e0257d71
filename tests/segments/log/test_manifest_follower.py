"""A leader follows the newest manifest, and raises the log start so that each later leader starts from it, or can't know it."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pytest

from metadata.errors import InvalidArgument, NoLeader, OutcomeUnknown, OutOfRange, SessionFenced, TidelogError, Unavailable
from metadata.model import LeaderEpoch, Offset, TopicPartition
from segments.bucket.layout import manifest_key, segment_key
from segments.history.manifest import Manifest
from segments.history.manifest_edits import with_log_start
from segments.history.manifest_store import newest_manifest
from segments.log.session_log import SessionLog
from segments.recovery.recover import recover
from segments.recovery.recovered_partition import RecoveredPartition, empty_partition
from segments.wal.session import seal
from tests.kit.segments.batches import BY, ORDERS, SESSION, TIMESTAMP_MS, led
from tests.kit.segments.manifests import TOPIC, compacted_to, plant, writer_of
from tests.kit.segments.scripted_store import HAPPENS_UNANSWERED, LOST_ANSWER, REFUSED, SILENCE, Act, ScriptedStore, slow
from tests.kit.segments.serving import SETTINGS, lose_lease, produce, serving
from tests.simulation.virtual_loop import run


def leading(store: ScriptedStore, **how: Any) -> AbstractAsyncContextManager[SessionLog]:
    return serving(store, replace(SETTINGS, linger_ms=0), recovered=(empty_partition(ORDERS, SETTINGS, topic=TOPIC),), **how)


async def with_records(log: SessionLog, records: int = 5) -> None:
    for _ in range(records):
        await produce(log)


async def newest(store: ScriptedStore) -> Manifest | None:
    return await newest_manifest(store.another_client(), TOPIC, ORDERS)


async def next_leader(store: ScriptedStore) -> RecoveredPartition:
    how = {"settings": SETTINGS, "now_ms": lambda: TIMESTAMP_MS, "topics": {ORDERS: TOPIC}}
    found = (await recover(store.another_client(), {ORDERS: [led(SESSION.id)]}, by=BY, **how))[ORDERS]  # type: ignore[arg-type]
    assert isinstance(found, RecoveredPartition)
    return found


# ── adopt ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_newer_manifest_raises_the_log_start_and_forgets_the_runs_that_it_has_and_an_older_one_does_nothing() -> None:
    async def scenario() -> None:
        async with leading(store := ScriptedStore()) as log:
            await with_records(log)
            first = compacted_to(2)
            second = with_log_start(compacted_to(4, before=first), Offset(1), writer=writer_of(2), now_ms=0)
            assert log.manifests.version(ORDERS) == 0
            assert log.manifests.adopt(second)
            assert not log.manifests.adopt(first)
            assert log.manifests.version(ORDERS) == second.version
            assert (log.partitions.bounds(ORDERS).log_start_offset, log.partitions.at(ORDERS).runs.start_offset) == (1, 4)
            assert not log.manifests.adopt(compacted_to(2, partition=ORDERS._replace(partition=7))), "not led here"  # type: ignore[arg-type]
            assert store.count("get") == 0

    run(scenario())


def test_a_manifest_of_records_whose_commit_is_not_known_here_yet_counts_once_it_is() -> None:
    """Their PUT landed, and they were compacted, before its answer came back."""

    async def scenario() -> None:
        store = ScriptedStore()
        async with leading(store) as log:
            await with_records(log, 2)
            store.script("create", segment_key(SESSION.id, log.writer.committed_to), slow(0, 5))
            producing = asyncio.ensure_future(produce(log))
            await asyncio.sleep(1)
            manifest = with_log_start(compacted_to(3), Offset(3), writer=writer_of(1), now_ms=0)
            assert log.manifests.adopt(manifest)
            assert log.partitions.bounds(ORDERS)[:2] == (2, 2), "the log start never passes the high watermark"
            await producing
            assert log.partitions.bounds(ORDERS)[:2] == (3, 3)
            assert len(log.partitions.at(ORDERS).runs) == 0
            await produce(log)
            assert log.partitions.at(ORDERS).runs.start_offset == 3

    run(scenario())


def test_all_who_meet_a_gap_at_once_read_the_newest_manifest_once() -> None:
    async def scenario() -> None:
        store = ScriptedStore()
        async with leading(store) as log:
            await with_records(log)
            plant(store, compacted_to(3))
            assert await asyncio.gather(*(log.manifests.adopt_newest(ORDERS) for _ in range(5))) == [True] * 5
            assert store.count("get", manifest_key(TOPIC, ORDERS, 1)) == 1
            assert not await log.manifests.adopt_newest(ORDERS)
            store.outage = Unavailable("503")
            with pytest.raises(Unavailable):
                await log.manifests.adopt_newest(ORDERS)
            store.outage = None
            log.stop_leading(ORDERS)
            assert not await log.manifests.adopt_newest(ORDERS)

    run(scenario())


# ── delete records ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_records_that_were_deleted_stay_deleted_for_the_next_leader() -> None:
    async def scenario() -> None:
        store = ScriptedStore()
        async with leading(store) as log:
            await with_records(log)
            assert await log.manifests.delete_records(ORDERS, 3) == 3
            assert await log.manifests.delete_records(ORDERS, 2) == 3, "it never falls"
            manifest = await newest(store)
            assert manifest is not None
            assert (manifest.version, manifest.cause, manifest.compacted_to) == (1, "delete-records", 0)
            found = await next_leader(store)
            assert found.log(LeaderEpoch(9)).bounds[:3] == (3, 5, 5)

    run(scenario())


def test_a_refusal_has_written_nothing() -> None:
    async def scenario() -> None:
        store = ScriptedStore()
        async with leading(store) as log:
            await with_records(log)
            with pytest.raises(OutOfRange, match="committed up to 5") as refused:
                await log.manifests.delete_records(ORDERS, 6)
            assert refused.value.details == {"log_start_offset": 0, "high_watermark": 5}
            with pytest.raises(InvalidArgument):
                await log.manifests.delete_records(ORDERS, -2)
            assert await log.manifests.delete_records(ORDERS, -1, validate_only=True) == 5
            log.partitions.pause(ORDERS)
            with pytest.raises(NoLeader):
                await log.manifests.delete_records(ORDERS, 1)
            assert await newest(store) is None
            assert log.partitions.bounds(ORDERS).log_start_offset == 0

    run(scenario())


@pytest.mark.parametrize("act", [LOST_ANSWER, HAPPENS_UNANSWERED])
def test_a_lost_answer_is_asked_after(act: object) -> None:
    async def scenario() -> None:
        store = ScriptedStore()
        store.script("create", manifest_key(TOPIC, ORDERS, 1), act)  # type: ignore[arg-type]
        async with leading(store) as log:
            await with_records(log)
            assert await log.manifests.delete_records(ORDERS, 3) == 3
            manifest = await newest(store)
            assert manifest is not None
            assert manifest.version == 1

    run(scenario())


@pytest.mark.parametrize(("act", "error", "reported"), [(REFUSED, Unavailable, []), (SILENCE, OutcomeUnknown, [(ORDERS, 1)])])
def test_a_deletion_is_reported_if_its_manifest_may_exist_and_not_if_it_surely_does_not(
    act: Act, error: type[TidelogError], reported: list[tuple[TopicPartition, int]]
) -> None:
    async def scenario() -> None:
        store = ScriptedStore()
        store.script("create", manifest_key(TOPIC, ORDERS, 1), *[act] * 40)
        heard: list[tuple[TopicPartition, int]] = []
        async with leading(store, on_deletion=lambda partition, version: heard.append((partition, version))) as log:
            await with_records(log)
            with pytest.raises(error):
                await log.manifests.delete_records(ORDERS, 3)
            assert heard == reported

    run(scenario())


def test_a_compactor_that_is_first_only_makes_it_plan_again() -> None:
    async def scenario() -> None:
        store = ScriptedStore()
        store.script("create", manifest_key(TOPIC, ORDERS, 1), slow(1))
        reported: list[int] = []
        async with leading(store, on_deletion=lambda partition, version: reported.append(version)) as log:
            await with_records(log)
            deleting = asyncio.ensure_future(log.manifests.delete_records(ORDERS, 3))
            await asyncio.sleep(0.5)
            plant(store, compacted_to(4))
            store._scripts.clear()
            deleted = await deleting
            manifest = await newest(store)
            assert manifest is not None
            assert (deleted, manifest.log_start_offset, manifest.version) == (3, 3, 2)
            assert manifest.compacted_to == 4, "what the compactor did stays done"
            assert reported == [2], "the compactor reports the first one"

    run(scenario())


@pytest.mark.parametrize("lease_seems_to_live", [True, False])
def test_a_leader_that_was_replaced_while_it_deleted_says_that_it_does_not_know(lease_seems_to_live: bool) -> None:
    """The next leader had read the manifests before: its readers still find the records, until it reads them again."""

    async def scenario() -> None:
        store = ScriptedStore()
        async with leading(store) as log:
            await with_records(log)
            if not lease_seems_to_live:
                lose_lease(log)
            store.script("create", manifest_key(TOPIC, ORDERS, 1), slow(2))
            deleting = asyncio.ensure_future(log.manifests.delete_records(ORDERS, 3))
            await asyncio.sleep(1)
            found = await next_leader(store)
            assert found.log(LeaderEpoch(9)).bounds.log_start_offset == 0
            with pytest.raises(OutcomeUnknown, match="its next leader may not know it yet"):
                await deleting

    run(scenario())


def test_only_the_current_leader_reports_an_earlier_deletion() -> None:
    """It read so from a manifest of a compactor; the next leader had read the one before."""

    async def scenario() -> None:
        store = ScriptedStore()
        async with leading(store) as log:
            await with_records(log)
            found = await next_leader(store)
            assert found.log(LeaderEpoch(9)).bounds.log_start_offset == 0
            assert log.manifests.adopt(with_log_start(compacted_to(4), Offset(3), writer=writer_of(2), now_ms=0))
            with pytest.raises(SessionFenced):
                await log.manifests.delete_records(ORDERS, 2)

    run(scenario())


def test_a_deletion_during_a_handover_is_outcome_unknown() -> None:
    async def scenario() -> None:
        store = ScriptedStore()
        async with leading(store) as log:
            await with_records(log)
            store.script("create", manifest_key(TOPIC, ORDERS, 1), slow(2))
            deleting = asyncio.ensure_future(log.manifests.delete_records(ORDERS, 3))
            await asyncio.sleep(1)
            log.partitions.pause(ORDERS)
            with pytest.raises(OutcomeUnknown, match="handed over"):
                await deleting

    run(scenario())


def test_a_deletion_of_a_leader_that_was_fenced_before_it_has_written_nothing() -> None:
    async def scenario() -> None:
        store = ScriptedStore()
        async with leading(store) as log:
            await with_records(log)
            await seal(store.another_client(), SESSION.id, by=BY, now_ms=lambda: TIMESTAMP_MS)
            with pytest.raises(SessionFenced):
                await produce(log)
            with pytest.raises((SessionFenced, NoLeader)):
                await log.manifests.delete_records(ORDERS, 3)
            assert await newest(store) is None

    run(scenario())
