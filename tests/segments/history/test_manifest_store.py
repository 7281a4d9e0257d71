"""The highest version counts, one writer makes it, and each writer learns whether it was the one, whatever becomes of answers."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from metadata.errors import Corrupt, Denied, OutcomeUnknown, Unavailable
from metadata.model import Offset
from segments.bucket.layout import deleted_topic_key, history_file_key, manifest_key, topic_mirror_key
from segments.bucket.neighbour_listing import LISTED_TOGETHER
from segments.history.manifest import Manifest, Superseded, encode_manifest
from segments.history.manifest_edits import with_collected
from segments.history.manifest_store import commit_manifest, newest_manifest, newest_manifests
from segments.object_store.memory import MemoryObjectStore
from tests.kit.faulty_store import STORMY, FaultyStore
from tests.kit.segments.batches import ORDERS, PAYMENTS, TIMESTAMP_MS, partition_of
from tests.kit.segments.manifests import TOPIC, compacted_to, file_of, plant, writer_of
from tests.kit.segments.scripted_store import HAPPENS_UNANSWERED, LOST_ANSWER, LOST_REQUEST, REFUSED, ScriptedStore, fails, late
from tests.simulation.virtual_loop import run

FIRST = compacted_to(10, writer=1)
SECOND = compacted_to(20, before=FIRST, writer=2)
KEY = manifest_key(TOPIC, ORDERS, 1)


# ── read ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_highest_version_counts_and_other_names_do_not() -> None:
    store = ScriptedStore()
    assert run(newest_manifest(store, TOPIC, ORDERS)) is None
    for key in (topic_mirror_key(TOPIC, ORDERS.topic_id, 7), deleted_topic_key(TOPIC, ORDERS.topic_id, 9)):  # type: ignore[arg-type]
        store.plant(key, b"{}")
    store.plant(history_file_key(TOPIC, ORDERS, file_of(0, 9).name), b"PAR1")
    store.plant(KEY.replace("/00000/", "/00000x/"), b"")
    assert run(newest_manifest(store, TOPIC, ORDERS)) is None
    plant(store, FIRST)
    plant(store, SECOND)
    assert run(newest_manifest(store, TOPIC, ORDERS)) == SECOND
    assert run(newest_manifest(store, TOPIC, partition_of(1))) is None


def test_neighbours_share_the_pages_of_a_listing_and_what_lies_between_is_skipped() -> None:
    store = ScriptedStore()
    partitions = [partition_of(number) for number in range(1_000)]
    newest: dict[object, Manifest] = {}
    for partition in partitions[::2]:
        for version in range(1, 4):
            newest[partition] = compacted_to(10 * version, before=newest.get(partition), partition=partition)
            plant(store, newest[partition])
    assert run(newest_manifests(store, dict.fromkeys(partitions, TOPIC))) == {p: newest.get(p) for p in partitions}
    assert store.count("get") == 500
    assert store.count("list") == 4, f"1,000 partitions in lots of {LISTED_TOGETHER}, a page of 1,000 keys for each"

    few = [partitions[2], partitions[998]]
    assert run(newest_manifests(store, dict.fromkeys(few, TOPIC))) == {p: newest[p] for p in few}
    assert store.count("list") == 4 + 2


def test_a_manifest_that_is_known_is_not_read_again_while_it_is_the_newest() -> None:
    store = ScriptedStore()
    plant(store, FIRST)
    known = {ORDERS: FIRST}
    assert run(newest_manifests(store, {ORDERS: TOPIC}, known=known)) == {ORDERS: FIRST}
    assert (store.count("list"), store.count("get")) == (1, 0)
    plant(store, SECOND)
    assert run(newest_manifests(store, {ORDERS: TOPIC}, known=known)) == {ORDERS: SECOND}


def test_a_damaged_manifest_is_an_error_of_its_partition_and_the_others_are_read() -> None:
    store = ScriptedStore()
    plant(store, FIRST)
    other = compacted_to(5, partition=PAYMENTS)
    store.plant(manifest_key("payments", PAYMENTS, 1), encode_manifest(other)[:-9])
    found = run(newest_manifests(store, {ORDERS: TOPIC, PAYMENTS: "payments"}))
    assert found[ORDERS] == FIRST
    assert isinstance(error := found[PAYMENTS], Corrupt)
    assert error.details["key"] == manifest_key("payments", PAYMENTS, 1)


def test_a_refusal_of_the_bucket_is_raised() -> None:
    store = ScriptedStore()
    plant(store, FIRST)
    store.script("get", KEY, fails(Denied("no s3:GetObject")))
    with pytest.raises(Denied):
        run(newest_manifests(store, {ORDERS: TOPIC}))


def test_a_manifest_that_is_superseded_and_deleted_during_the_read_is_looked_up_again() -> None:
    store = ScriptedStore()
    plant(store, FIRST)

    class MovesOn(ScriptedStore):
        async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
            if key == KEY:
                plant(self, SECOND)
                await self.delete(KEY)
            return await super().get(key, start=start, end=end)

    moving = MovesOn()
    plant(moving, FIRST)
    assert run(newest_manifest(moving, TOPIC, ORDERS)) == SECOND
    again = MovesOn()
    plant(again, FIRST)
    assert run(newest_manifests(again, {ORDERS: TOPIC})) == {ORDERS: SECOND}


# ── commit ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_of_two_writers_of_a_version_one_loses() -> None:
    store = ScriptedStore()
    assert run(commit_manifest(store, TOPIC, FIRST))
    assert not run(commit_manifest(store, TOPIC, compacted_to(12, writer=7)))
    assert run(newest_manifest(store, TOPIC, ORDERS)) == FIRST


@pytest.mark.parametrize("act", [LOST_ANSWER, LOST_REQUEST, REFUSED, HAPPENS_UNANSWERED, late(0.04)])
def test_an_answer_that_is_lost_is_asked_after(act: object) -> None:
    store = ScriptedStore()
    store.script("create", KEY, act)  # type: ignore[arg-type]
    assert run(commit_manifest(store, TOPIC, FIRST))
    assert run(newest_manifest(store, TOPIC, ORDERS)) == FIRST


def test_an_answer_that_is_lost_is_known_for_ones_own_when_others_went_on_from_it() -> None:
    store = ScriptedStore()
    store.script("create", KEY, HAPPENS_UNANSWERED)

    async def scenario() -> bool:
        ours = asyncio.ensure_future(commit_manifest(store, TOPIC, FIRST))
        await asyncio.sleep(1)
        assert await commit_manifest(store, TOPIC, SECOND)
        return await ours

    assert run(scenario())


def test_a_commit_during_an_outage_times_out_as_unavailable_or_outcome_unknown() -> None:
    store = ScriptedStore()
    store.outage = Unavailable("503")
    with pytest.raises(Unavailable, match="no manifest was written"):
        run(commit_manifest(store, TOPIC, FIRST, timeout_s=5))
    store.outage = OutcomeUnknown("reset")
    with pytest.raises(OutcomeUnknown, match="not known whether"):
        run(commit_manifest(store, TOPIC, FIRST, timeout_s=5))


def test_a_writer_of_a_superseded_and_deleted_version_loses_even_if_its_create_succeeds() -> None:
    """Decided by what stands on the bucket: however long it slept, and though its create succeeds."""
    store = ScriptedStore()
    third = compacted_to(30, before=SECOND, writer=3)
    plant(store, third)  # versions 1 and 2 were deleted, and are still called superseded
    assert not run(commit_manifest(store, TOPIC, compacted_to(15, writer=9)))
    assert not run(commit_manifest(store, TOPIC, compacted_to(15, before=FIRST, writer=9)))
    forgotten = with_collected(third, versions=[1, 2], writer=writer_of(4), now_ms=TIMESTAMP_MS)
    plant(store, forgotten)
    store.remove(KEY)
    assert not run(commit_manifest(store, TOPIC, compacted_to(15, writer=9)))
    assert run(newest_manifest(store, TOPIC, ORDERS)) == forgotten


def test_a_topic_that_was_deleted_meanwhile_is_lost() -> None:
    store = ScriptedStore()

    class Sweeps(ScriptedStore):
        async def create(self, key: str, body: object, **how: object) -> None:
            await super().create(key, body, **how)  # type: ignore[arg-type]
            await self.delete(key)

    store = Sweeps()
    assert not run(commit_manifest(store, TOPIC, FIRST))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_racing_writers_on_a_bad_network_make_each_version_once_and_know_which_are_theirs(seed: int) -> None:
    """Each adds one offset at a time to what it finds: so what was committed adds up to the answers."""

    async def scenario() -> None:
        chance, bucket, log = random.Random(seed), MemoryObjectStore(), list[str]()
        reported: dict[int, int] = {1: 0, 2: 0, 3: 0}
        drawn = iter(range(10, 10**6))

        async def writes(number: int) -> None:
            store = FaultyStore(bucket, chance, STORMY, name=f"writer {number}", log=log)
            while reported[number] < 5:
                try:
                    newest = await newest_manifest(store, TOPIC, ORDERS)
                    end = 1 + (newest.compacted_to if newest else 0)
                    manifest = compacted_to(end, before=newest, writer=next(drawn))
                    if await commit_manifest(store, TOPIC, manifest, timeout_s=600):
                        reported[number] += 1
                except Unavailable:
                    await asyncio.sleep(0.1)

        async with asyncio.TaskGroup() as writers:
            for number in reported:
                writers.create_task(writes(number))
        newest = await newest_manifest(bucket, TOPIC, ORDERS)
        assert newest is not None
        assert (newest.version, newest.compacted_to) == (15, 15)
        assert [one.version for one in newest.superseded] == list(range(1, 15))

    run(scenario(), seed=seed)


def test_superseded_versions_are_distinguished_by_their_writers() -> None:
    store = ScriptedStore()
    plant(store, msgspec.structs.replace(SECOND, superseded=(Superseded(1, TIMESTAMP_MS, writer_of(5)),)))
    assert not run(commit_manifest(store, TOPIC, FIRST))
    assert run(newest_manifest(store, TOPIC, ORDERS)) is not None
    assert FIRST.compacted_to == Offset(10)
