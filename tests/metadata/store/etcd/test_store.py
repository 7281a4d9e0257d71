"""What the contract does not say of the store on etcd: its sizes and limits, its leases in real time, its end. On a real etcd."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import grpc.aio
import pytest

from metadata.errors import Corrupt, InvalidArgument, OutcomeUnknown, Rejected, Stopping, Throttled, TooLarge, Unavailable
from metadata.model import Revision
from metadata.store.etcd import client as etcd_client
from metadata.store.etcd import member as etcd_member
from metadata.store.etcd import store as etcd_store
from metadata.store.etcd.proto import etcd_pb2
from metadata.store.etcd.settings import EtcdSettings
from metadata.store.etcd.store import EtcdStore
from metadata.store.etcd.watch_batches import WatchBatches
from metadata.store.interface import NO_LEASE, DeletePrefix, LeaseId, LeaseLost, Put, WatchBatch
from tests.kit.etcd_server import SHARED, in_thread, running_etcd, settings
from tests.kit.metadata.stores import PATIENCE_S, run, take, until
from tests.kit.tcp_proxy import tcp_proxy

pytestmark = pytest.mark.slow
# An address where nothing listens.
UNREACHABLE = "http://127.0.0.1:1"


@asynccontextmanager
async def opened(urls: str | None = None, **changed: object) -> AsyncIterator[EtcdStore]:
    store = EtcdStore(settings(urls or SHARED.member.url, **changed))
    try:
        yield store
    finally:
        await store.close()


def new_prefix() -> str:
    return f"/{uuid.uuid4().hex}/"


async def put(store: EtcdStore, key: str, value: bytes = b"", lease: LeaseId = NO_LEASE) -> Revision:
    return (await store.transact([], [Put(key, value, lease)])).revision


async def put_many(store: EtcdStore, keys: list[str], value: bytes = b"") -> None:
    """In full transactions, some at a time."""
    parts = iter([keys[n : n + 128] for n in range(0, len(keys), 128)])

    async def writer() -> None:
        for part in parts:
            await store.transact([], [Put(key, value) for key in part])

    await asyncio.gather(*(writer() for _ in range(4)))


# Ranges


def test_a_hundred_thousand_keys_are_read_at_one_revision_in_bounded_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with opened(etcd_request_timeout_ms=120_000, etcd_deadline_ms=240_000) as store:  # all are deleted at once
            prefix = new_prefix()
            keys = [f"{prefix}{n:06d}" for n in range(100_000)]
            await put_many(store, keys)
            sizes: list[tuple[int, int]] = []
            ask = store._range

            async def counted(request: etcd_pb2.RangeRequest, doing: str) -> etcd_pb2.RangeResponse:
                answer = await ask(request, doing)
                sizes.append((len(answer.kvs), answer.ByteSize()))
                if len(sizes) == 1:
                    await put(store, f"{prefix}999999")  # comes too late for this range
                return answer

            monkeypatch.setattr(store, "_range", counted)
            read = await store.range(prefix)
            assert [item.key for item in read.items] == keys
            assert not read.more
            assert max(keys for keys, _ in sizes) <= etcd_store.PAGE_KEYS_MAX
            assert max(size for _, size in sizes) <= etcd_store.PAGE_BYTES
            part = await store.range(prefix, limit=7_001)
            assert ([item.key for item in part.items], part.more) == (keys[:7_001], True)
            await store.transact([], [DeletePrefix(prefix)])

    run(test())


def test_values_that_do_not_fit_one_answer_together_are_read_in_smaller_pages() -> None:
    async def test() -> None:
        async with opened() as store:
            prefix = new_prefix()
            for n in range(24):
                await put(store, f"{prefix}{n:02d}", bytes([n]) * (1 << 20))
            read = await store.range(prefix)
            assert [(len(item.value), item.value[0]) for item in read.items] == [(1 << 20, n) for n in range(24)]
            await store.transact([], [DeletePrefix(prefix)])

    run(test())


def test_a_value_that_fits_no_answer_is_too_large_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_member, "_OPTIONS", (("grpc.max_receive_message_length", 1 << 16),))

    async def test() -> None:
        async with opened() as store:
            prefix = new_prefix()
            await put(store, f"{prefix}a", bytes(1 << 15))
            await put(store, f"{prefix}b", bytes(1 << 17))
            assert len((await store.range(prefix, limit=1)).items) == 1
            for read in (store.get(f"{prefix}b"), store.range(prefix)):
                with pytest.raises(TooLarge, match=f"{prefix}[ab]"):
                    await cast(Awaitable[object], read)

    run(test())


def test_a_range_that_compaction_overtakes_is_read_again_where_it_asked_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_store, "PAGE_KEYS_FIRST", 2)

    async def test(overtaken: int) -> list[str]:
        async with opened() as store:
            prefix = new_prefix()
            await store.transact([], [Put(f"{prefix}{name}", b"") for name in "abc"])
            left = overtaken
            ask = store._range

            async def compacting(request: etcd_pb2.RangeRequest, doing: str) -> etcd_pb2.RangeResponse:
                nonlocal left
                answer = await ask(request, doing)
                if left and not request.revision:
                    left -= 1
                    await SHARED.member.compact(await put(store, f"{prefix}d"))
                return answer

            monkeypatch.setattr(store, "_range", compacting)
            return [item.key.removeprefix(prefix) for item in (await store.range(prefix)).items]

    assert run(test(0)) == ["a", "b", "c"]
    assert run(test(2)) == ["a", "b", "c", "d"]
    with pytest.raises(Unavailable, match="compacted 3 times"):
        run(test(3))


def test_a_key_that_is_no_text_is_corrupt_and_named() -> None:
    async def test() -> None:
        async with opened() as store:
            prefix = new_prefix()
            await in_thread(lambda: SHARED.member.control("put", f"{prefix}\udcff", "x"))  # the byte 0xFF
            with pytest.raises(Corrupt, match=r"\\xff") as corrupt:
                await store.range(prefix)
            assert "xff" in str(corrupt.value.details["key"])
            await store.transact([], [DeletePrefix(prefix)])

    run(test())


# Limits


def test_a_request_that_etcd_would_refuse_is_refused_before_it_is_sent() -> None:
    async def test() -> None:
        async with opened(UNREACHABLE) as store:
            with pytest.raises(InvalidArgument, match="129 operations"):
                await store.transact([], [Put(f"/{n}", b"") for n in range(129)])
            for refused in (
                store.get(""),
                store.range("/", limit=-1),
                store.range("/", revision=Revision(-1)),
                store.grant_lease(-1),
            ):
                with pytest.raises(InvalidArgument):
                    await cast(Awaitable[object], refused)
            with pytest.raises(InvalidArgument, match="not valid Unicode"):
                store.watch("\ud800", Revision(1))

    run(test())


def test_more_requests_than_may_wait_are_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_client, "CALLS_PENDING_MAX", 3)

    async def test() -> None:
        async with opened() as store:
            waiting = [asyncio.ensure_future(store.get("/a")) for _ in range(3)]
            await asyncio.sleep(0)
            with pytest.raises(Throttled):
                await store.get("/a")
            assert await asyncio.gather(*waiting) == [None] * 3
            assert await store.get("/a") is None

    run(test())


def test_a_full_etcd_leaves_a_write_unknown_and_says_what_to_do(tmp_path: Path) -> None:
    async def test() -> None:
        with running_etcd(tmp_path, "--quota-backend-bytes=3000000") as member:
            async with opened(member.url) as store:
                with pytest.raises(OutcomeUnknown, match="database space exceeded") as full:
                    await fill(store)
                assert "etcdctl alarm disarm" in full.value.hint
                with pytest.raises(Unavailable, match="database space exceeded"):
                    await store.grant_lease(5)
                assert await store.get("/0") is not None  # reads go on

    async def fill(store: EtcdStore) -> None:
        for n in range(1000):
            await put(store, f"/{n}", bytes(1 << 20))

    run(test())


# Leases in real time


def test_etcd_ends_a_lease_that_is_not_renewed_and_its_keys_with_it() -> None:
    async def test() -> None:
        async with opened() as store:
            key = new_prefix()
            written = None
            while written is None:
                lease = await store.grant_lease(1.0)
                with suppress(LeaseLost):  # on a busy machine it may end before it is used
                    written = await put(store, key, b"", lease)
            (batch,) = await take(store.watch(key, Revision(written + 1)), 1)
            assert [event.kind for event in batch.events] == ["delete"]
            with pytest.raises(LeaseLost):
                await store.keep_alive(lease)

    run(test())


def test_a_lease_that_is_kept_outlives_its_time_to_live() -> None:
    async def test() -> None:
        async with opened() as store:
            key, ttl_s = new_prefix(), 2.0
            lease = NO_LEASE
            while lease == NO_LEASE:
                lease = await store.grant_lease(ttl_s)
                renewed_s = time.monotonic()
                try:
                    await put(store, key, b"", lease)
                    for _ in range(4):  # more than a time to live
                        asked_s = time.monotonic()
                        assert await store.keep_alive(lease) == ttl_s
                        renewed_s = asked_s
                        await asyncio.sleep(ttl_s / 3)
                    assert await store.keep_alive(lease) == ttl_s
                except LeaseLost:
                    assert time.monotonic() - renewed_s >= ttl_s  # on a busy machine this process may stand still that long
                    lease = NO_LEASE
            await store.revoke_lease(lease)
            assert await store.get(key) is None

    run(test())


# Watches


def test_a_transaction_too_large_for_one_answer_is_seen_whole() -> None:
    async def test() -> None:
        async with opened() as store:
            prefix = new_prefix()
            keys = [f"{prefix}{n:04d}/{'x' * 2000}" for n in range(2000)]
            await put_many(store, keys)
            deleted = (await store.transact([], [DeletePrefix(prefix)])).revision
            (batch,) = await take(store.watch(prefix, deleted), 1)
            assert (batch.revision, [event.key for event in batch.events]) == (deleted, keys)

    run(test())


def test_a_reader_that_takes_nothing_is_sent_no_more_than_its_window_and_blocks_no_other() -> None:
    async def test() -> None:
        async with tcp_proxy(SHARED.member.client_port) as proxy, opened() as writer, opened(proxy.url) as store:
            prefix = new_prefix()
            first = await put(writer, f"{prefix}0")
            slow = store.watch(prefix, first)
            assert (await anext(slow)).revision == first
            for n in range(1, 41):
                await put(writer, f"{prefix}{n}", bytes(500_000))
            for _ in range(100):
                await store.get(prefix)  # over the same connection
            assert proxy.answered_bytes < 4_000_000
            last = await put(writer, f"{prefix}41")
            others = await take(store.watch(prefix, last), 1)
            assert [batch.revision for batch in others] == [last]
            assert [batch.revision for batch in await take(slow, 41)] == list(range(first + 1, last + 1))
            await writer.transact([], [DeletePrefix(prefix)])

    run(test())


def test_a_quiet_watch_survives_the_compaction_of_what_it_has_slept_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[int] = []
    take_answer = WatchBatches.take

    def noted(batches: WatchBatches, answer: etcd_pb2.WatchResponse) -> Iterator[WatchBatch]:
        yield from take_answer(batches, answer)
        reported.append(answer.header.revision)

    monkeypatch.setattr(WatchBatches, "take", noted)

    async def test() -> None:
        with running_etcd(tmp_path, "--experimental-watch-progress-notify-interval=100ms") as member:
            async with opened(member.url) as store:
                written = await put(store, "/quiet/a")
                quiet = store.watch("/quiet/", written)
                assert (await anext(quiet)).revision == written
                async with asyncio.TaskGroup() as tasks:
                    waiting = tasks.create_task(take(quiet, 1))
                    for _ in range(5):
                        last = await put(store, "/busy")
                    await until(lambda: last in reported)
                    await member.compact(last)
                    await in_thread(member.kill)
                    await in_thread(member.start)
                    again = await put(store, "/quiet/a")
                assert [batch.revision for batch in waiting.result()] == [again]

    run(test())


# The end


def test_a_closed_store_refuses_requests_and_ends_watches() -> None:
    async def test() -> None:
        async with opened() as store:
            prefix = new_prefix()
            first = await put(store, prefix)
            begun = store.watch(prefix, first)
            assert (await anext(begun)).revision == first
            async with asyncio.TaskGroup() as tasks:
                waiting = [tasks.create_task(until_stopping(store.watch(prefix, Revision(first + 1)))) for _ in range(3)]
                await until(lambda: len(store._client.streams) == 4)
                await store.close()
            assert [task.result() for task in waiting] == [True] * 3
            assert await until_stopping(begun)
            assert await until_stopping(store.watch(prefix, first))
            for refused in (store.get("/a"), store.transact([], []), store.grant_lease(5), store.keep_alive(LeaseId(1))):
                with pytest.raises(Stopping):
                    await cast(Awaitable[object], refused)
            await store.close()  # once more is no error

    async def until_stopping(watch: Any) -> bool:
        try:
            await take(watch, 1)
        except Stopping:
            return True
        return False

    run(test())


def test_closing_waits_for_what_is_under_way() -> None:
    async def test() -> None:
        async with opened() as store:
            writes = [asyncio.ensure_future(put(store, new_prefix())) for _ in range(20)]
            await asyncio.sleep(0)
            await store.close()
            assert len({await write for write in writes}) == 20

    run(test())


def test_closing_does_not_wait_for_an_etcd_that_is_not_there() -> None:
    async def test() -> None:
        store = EtcdStore(settings(UNREACHABLE, etcd_deadline_ms=3_600_000))
        waiting = asyncio.ensure_future(store.get("/a"))
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            await store.close()
        with pytest.raises(Stopping):
            await waiting

    run(test())


def test_a_reader_that_hangs_up_does_not_disturb_the_others() -> None:
    async def test() -> None:
        async with opened() as store:
            prefix = new_prefix()
            first = await put(store, prefix)
            staying = asyncio.ensure_future(take(store.watch(prefix, first), 2))
            leaving = [
                asyncio.ensure_future(call) for call in (store.get(prefix), put(store, prefix), take(store.watch(prefix, first), 9))
            ]
            await until(lambda: len(store._client.streams) >= 1)
            for one in leaving:
                one.cancel()
            await asyncio.wait(leaving)
            await put(store, prefix)
            assert len(await staying) == 2

    run(test())


# What is no etcd


def test_an_etcd_that_is_not_there_is_unavailable_and_named() -> None:
    async def test() -> None:
        async with opened(f"{UNREACHABLE},http://127.0.0.1:2", etcd_deadline_ms=500) as store:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    with pytest.raises(Unavailable) as down:
                        await put(store, "/a")
                    assert down.value.nothing_was_written
                    reported = str(down.value)
                    if "refused" in reported and "http://127.0.0.1:1: " in reported and "http://127.0.0.1:2: " in reported:
                        break  # else they were not tried in time
            assert down.value.hint == "Check that etcd runs there and can be reached."

    run(test())


def test_a_server_of_another_kind_is_refused_at_once() -> None:
    async def test() -> None:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with opened(f"http://127.0.0.1:{port}", etcd_deadline_ms=3_600_000) as store:
                with pytest.raises(Rejected, match="not found") as refused:
                    await store.check("/")
                assert refused.value.hint == "Is this an etcd of version 3.4 or later?"
        finally:
            await server.stop(None)

    run(test())


def test_a_store_needs_an_address() -> None:
    async def test() -> None:
        with pytest.raises(InvalidArgument, match="etcd is not set"):
            EtcdStore(EtcdSettings())

    run(test())
