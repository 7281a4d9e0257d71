"""What every object store keeps, whatever it is made of. A new one adds itself to `store`, and passes the same tests."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest
from awscrt.checksums import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metadata.errors import AlreadyExists, Corrupt, InvalidArgument, NotFound, OutcomeUnknown
from metadata.model import SegmentSeq
from segments.bucket.layout import segment_key
from segments.object_store.directory import DirectoryObjectStore
from segments.object_store.interface import Buffer, ObjectStore
from segments.object_store.memory import MemoryObjectStore
from segments.wal.segment_file import EncodedSegment
from segments.wal.session import is_segment_there
from tests.kit.segments.batches import ORDERS, SESSION, batch_of, segment_of, stamped_run
from tests.kit.servers import S3Server, named_server, versity_server

Scenario = Callable[[ObjectStore], Coroutine[None, None, None]]
# Opens the store, runs the scenario with it and closes it. Within one test, it is the same bucket each time.
Run = Callable[[Scenario], None]

KIB, MIB = 1 << 10, 1 << 20
FIRST = SegmentSeq(0)
numbers = itertools.count()
few_examples = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


STORES = [
    "memory",
    "directory",
    pytest.param("moto", marks=pytest.mark.slow),
    pytest.param("versity", marks=pytest.mark.slow),
    pytest.param("named_s3", marks=pytest.mark.slow),
]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    open_it = opener(request, tmp_path, monkeypatch)

    async def run(scenario: Scenario) -> None:
        store = await open_it()
        try:
            await scenario(store)
        finally:
            await store.close()

    return lambda scenario: asyncio.run(run(scenario))


@pytest.fixture(params=STORES)
def store_kept_open(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """For many examples: to make a client for S3 takes longer than most scenarios."""
    open_it = opener(request, tmp_path, monkeypatch)
    with asyncio.Runner() as runner:
        store = runner.run(open_it())
        try:
            yield lambda scenario: runner.run(scenario(store))
        finally:
            runner.run(store.close())


def opener(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Coroutine[None, None, ObjectStore]]:
    if request.param == "memory":
        memory = MemoryObjectStore()
        return lambda: as_opened(memory)
    if request.param == "directory":
        return lambda: DirectoryObjectStore.open(tmp_path)
    from segments.object_store.s3.store import S3ObjectStore

    server: S3Server = request.getfixturevalue(request.param)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    bucket = server.make_bucket()
    return lambda: S3ObjectStore.open(bucket, "a/prefix", server.settings)


async def as_opened(store: ObjectStore) -> ObjectStore:
    return store


@pytest.fixture(scope="module")
def versity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with versity_server(tmp_path_factory.mktemp("versity")) as server:
        yield server


@pytest.fixture(scope="module")
def named_s3() -> Iterator[S3Server]:
    with named_server() as server:
        yield server


async def keys_below(store: ObjectStore, prefix: str, *, limit: int = 1000) -> list[str]:
    """Every key that begins with `prefix`, read in pages of `limit`."""
    keys: list[str] = []
    start_after = ""
    while True:
        page = await store.list(prefix, start_after=start_after, limit=limit)
        assert len(page.objects) <= limit
        keys += [found.key for found in page.objects]
        if not page.more:
            return keys
        start_after = keys[-1]


# Creating


@pytest.mark.parametrize(
    "body",
    [
        [b"one buffer"],
        [b"bytes, ", bytearray(b"a bytearray "), memoryview(b"and a view")],
        [b"", b"between empty ones", b""],
        [b"%d," % number for number in range(5000)],
        [os.urandom(MIB), b"small", os.urandom(64 * KIB), os.urandom(2 * MIB)],
    ],
    ids=["one buffer", "three kinds", "empty buffers", "5000 buffers", "large and small"],
)
def test_an_object_that_was_created_is_read_back_whole(store: Run, body: list[Buffer]) -> None:
    async def scenario(store: ObjectStore) -> None:
        await store.create("wal/00/07", body)
        assert await store.get("wal/00/07") == b"".join(body)

    store(scenario)


def test_the_checksum_of_the_body_may_come_with_it(store: Run) -> None:
    async def scenario(store: ObjectStore) -> None:
        await store.create("wal/00/07", [b"batch, ", b"batch"], crc32c=crc32c(b"batch, batch"))
        assert await store.get("wal/00/07") == b"batch, batch"

    store(scenario)


def test_an_empty_object_is_an_object(store: Run) -> None:
    async def scenario(store: ObjectStore) -> None:
        await store.create("empty", [])
        await store.create("empty-too", [b""])
        for key in ("empty", "empty-too"):
            assert await store.get(key) == b""
            assert await store.get(key, start=0, end=10) == b""
            tail = await store.tail(key, 8)
            assert (tail.body, tail.size) == (b"", 0)
        assert [(found.key, found.size) for found in (await store.list("")).objects] == [("empty", 0), ("empty-too", 0)]
        with pytest.raises(AlreadyExists):
            await store.create("empty", [b"no longer empty"])

    store(scenario)


def test_a_second_create_loses_and_changes_nothing(store: Run) -> None:
    async def scenario(store: ObjectStore) -> None:
        await store.create("wal/00/00", [b"the first"])
        for body in (b"the second, which is longer", b"", b"the first"):
            with pytest.raises(AlreadyExists, match="wal/00/00") as refused:
                await store.create("wal/00/00", [body])
            assert store.url in str(refused.value)
        assert await store.get("wal/00/00") == b"the first"
        assert await keys_below(store, "") == ["wal/00/00"]

    store(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 300 * KIB])
def test_exactly_one_of_sixteen_concurrent_creates_wins(store: Run, size: int) -> None:
    async def scenario(store: ObjectStore) -> None:
        for round_ in range(5):
            key = f"race/{round_}"
            bodies = [b"%02d" % number * (size // 2) for number in range(16)]
            outcomes = await asyncio.gather(*(store.create(key, [body]) for body in bodies), return_exceptions=True)
            won = [body for body, outcome in zip(bodies, outcomes, strict=True) if outcome is None]
            assert len(won) == 1
            assert [outcome for outcome in outcomes if outcome is not None and not isinstance(outcome, AlreadyExists)] == []
            assert await store.get(key) == won[0]

    store(scenario)


def test_creates_of_different_keys_do_not_meet(store: Run) -> None:
    async def scenario(store: ObjectStore) -> None:
        await asyncio.gather(*(store.create(f"wal/{number:02}/x", [b"%d" % number]) for number in range(40)))
        for number in range(40):
            assert await store.get(f"wal/{number:02}/x") == b"%d" % number

    store(scenario)


def test_a_create_that_is_cancelled_happens_whole_or_not_at_all(store: Run) -> None:
    body = [os.urandom(MIB)] * 4
    keys = [f"cancelled/{number}" for number in range(12)]

    async def cancelling(store: ObjectStore) -> None:
        for steps, key in enumerate(keys):
            create = asyncio.ensure_future(store.create(key, body))
            for _ in range(steps * 3):
                await asyncio.sleep(0)
            create.cancel()
            await asyncio.gather(create, return_exceptions=True)

    async def looking(store: ObjectStore) -> None:
        listed = await keys_below(store, "")
        assert set(listed) <= set(keys)
        for key in keys:
            if key in listed:
                assert await store.get(key) == b"".join(body)
            else:
                with pytest.raises(NotFound):
                    await store.get(key)
                await store.create(key, [b"made afterwards"])

    store(cancelling)
    store(looking)


def test_a_reader_never_meets_half_an_object(store: Run) -> None:
    whole = os.urandom(3 * MIB)

    async def scenario(store: ObjectStore) -> None:
        create = asyncio.ensure_future(store.create("big", [whole]))
        seen = False
        while not seen:
            await asyncio.sleep(0)
            finished = create.done()
            try:
                assert await store.get("big") == whole
                seen = True
            except NotFound:
                assert not finished, "an object that was created is not there"
        await create

    store(scenario)


# Reading


def test_an_object_is_seen_by_every_read_that_starts_after_its_create(store: Run) -> None:
    async def scenario(store: ObjectStore) -> None:
        for number in range(10):
            key = f"wal/{number:04}"
            await store.create(key, [key.encode()])
            assert await store.get(key) == key.encode()
            assert (await store.tail(key, 4)).body == key[-4:].encode()
            assert (await keys_below(store, "wal/"))[-1] == key

    store(scenario)


def test_a_range_reads_what_a_slice_would(store: Run) -> None:
    content = bytes(range(256)) * 3

    async def scenario(store: ObjectStore) -> None:
        await store.create("object", [content])
        for start, end in [(0, 1), (0, 768), (0, 10_000), (1, 2), (300, 301), (700, 768), (767, 768), (767, 9999), (5, 600)]:
            assert await store.get("object", start=start, end=end) == content[start:end]
        for start in (0, 1, 500, 767):
            assert await store.get("object", start=start) == content[start:]

    store(scenario)


def test_a_range_past_the_end_or_of_no_bytes_is_refused(store: Run) -> None:
    ranges = [(5, None), (5, 6), (99, None), (99, 1000), (-1, None), (-3, -1), (2, 2), (3, 1), (0, 0)]

    async def scenario(store: ObjectStore) -> None:
        await store.create("object", [b"01234"])
        for start, end in ranges:
            with pytest.raises(InvalidArgument, match="object"):
                await store.get("object", start=start, end=end)

    store(scenario)


def test_a_tail_is_the_end_of_the_object_with_its_size(store: Run) -> None:
    async def scenario(store: ObjectStore) -> None:
        await store.create("object", [b"0123", b"456789"])
        for bytes_max in (1, 4, 9, 10, 11, 1000):
            tail = await store.tail("object", bytes_max)
            assert (tail.body, tail.size) == (b"0123456789"[-bytes_max:], 10)
        for bytes_max in (0, -1):
            with pytest.raises(InvalidArgument):
                await store.tail("object", bytes_max)

    store(scenario)


def test_a_missing_key_is_not_found_and_the_error_names_it(store: Run) -> None:
    async def scenario(store: ObjectStore) -> None:
        await store.create("wal/00/00", [b"x"])
        for key in ("wal/00/01", "wal/00", "wal", "elsewhere/00", "wal/00/00/deeper"):
            for read in (store.get(key), store.get(key, start=3, end=4), store.tail(key, 10)):
                with pytest.raises(NotFound, match=key) as missing:
                    await read
                assert store.url in str(missing.value)

    store(scenario)


# Listing

components = st.text("a-.=0/", min_size=1, max_size=3).map(lambda text: text.strip("./") or "b")
some_keys = st.lists(st.lists(components, min_size=1, max_size=3).map("/".join), min_size=1, max_size=12, unique=True).map(
    lambda keys: [key for key in keys if not any(other.startswith(key + "/") for other in keys)]
)


@pytest.mark.slow
@few_examples
@given(keys=some_keys.filter(lambda keys: all("//" not in key for key in keys)), data=st.data())
def test_a_listing_is_in_byte_order_and_holds_what_was_asked_for(
    store_kept_open: Run, keys: list[str], data: st.DataObject
) -> None:
    folder = f"example-{next(numbers)}/"
    starts = [*keys, *(key[:-1] for key in keys), *(key + "-" for key in keys), "", "a", "a/", "zzz"]
    prefix = data.draw(st.sampled_from([start for start in starts if not start.endswith(("/.", "/.."))]))
    start_after = data.draw(st.sampled_from(starts))
    limit = data.draw(st.integers(1, len(keys) + 1))
    expected = sorted(key for key in keys if key.startswith(prefix) and key > start_after)

    async def scenario(store: ObjectStore) -> None:
        for key in keys:
            await store.create(folder + key, [b"-" * len(key)])
        page = await store.list(folder + prefix, start_after=folder + start_after, limit=limit)
        assert [(found.key, found.size) for found in page.objects] == [(folder + key, len(key)) for key in expected[:limit]]
        assert page.more or len(expected) <= limit
        assert not page.more or len(expected) >= limit, "only after a full page may nothing follow"
        assert await keys_below(store, folder, limit=limit) == sorted(folder + key for key in keys)

    store_kept_open(scenario)


def test_hyphens_and_dots_sort_before_the_slash(store: Run) -> None:
    expected = ["a-b/x", "a-c", "a.d", "a/y", "a/z/0", "a0", "b"]

    async def scenario(store: ObjectStore) -> None:
        for key in reversed(expected):
            await store.create(key, [b""])
        assert await keys_below(store, "") == expected
        assert await keys_below(store, "a", limit=2) == expected[:6]
        assert await keys_below(store, "a/") == ["a/y", "a/z/0"]
        assert (await store.list("", start_after="a.d", limit=1)).objects[0].key == "a/y"
        assert (await store.list("a", start_after="a/", limit=1)).objects[0].key == "a/y"

    store(scenario)


def test_a_listing_of_nothing_is_empty(store: Run) -> None:
    async def scenario(store: ObjectStore) -> None:
        for prefix in ("", "wal/", "wal/0000", "never/made/"):
            page = await store.list(prefix)
            assert (page.objects, page.more) == ((), False)
        await store.create("wal/00", [b""])
        assert (await store.list("wal/", start_after="wal/00")).objects == ()
        assert (await store.list("wal/00/")).objects == ()

    store(scenario)


def test_a_listing_that_can_hold_no_key_is_refused(store: Run) -> None:
    impossible = ["/wal", "a//b", "../x", "a/../b", ".tmp/", "ä", "a b", "a\0"]

    async def scenario(store: ObjectStore) -> None:
        for prefix in impossible:
            with pytest.raises(InvalidArgument):
                await store.list(prefix)
        for limit in (0, -1):
            with pytest.raises(InvalidArgument):
                await store.list("", limit=limit)
        with pytest.raises(InvalidArgument):
            await store.list("", start_after="ä")

    store(scenario)


# Deleting


def test_a_deleted_object_is_gone_and_deleting_it_again_is_no_error(store: Run) -> None:
    async def scenario(store: ObjectStore) -> None:
        await store.create("a/b/c", [b"x"])
        await store.create("a/b/d", [b"y"])
        for _ in range(2):
            await store.delete("a/b/c")
            with pytest.raises(NotFound):
                await store.get("a/b/c")
            assert await keys_below(store, "") == ["a/b/d"]
        await store.delete("never/made")
        await store.delete("a/b/d/deeper")
        assert await store.get("a/b/d") == b"y"
        await store.create("a/b/c", [b"another"])
        assert await store.get("a/b/c") == b"another"

    store(scenario)


def test_deleting_all_that_lies_below_a_prefix_leaves_nothing_of_it(store: Run) -> None:
    async def scenario(store: ObjectStore) -> None:
        for key in ("a/b/c", "a/b/d", "z"):
            await store.create(key, [b""])
        for key in await keys_below(store, "a/"):
            await store.delete(key)
        assert await keys_below(store, "") == ["z"]
        await store.delete("a/b")
        await store.delete("a")
        assert await keys_below(store, "") == ["z"]

    store(scenario)


# What stands in the way of a create


async def created_for_certain(store: ObjectStore, key: str, segment: EncodedSegment) -> None:
    """Creates it as a segment writer does. A server that answers before it has read a body may reset the connection."""
    for _ in range(20):
        try:
            return await store.create(key, segment.body, crc32c=segment.crc32c)
        except OutcomeUnknown:
            await asyncio.sleep(0.05)
    raise AssertionError("no create had an answer")


def test_a_segment_differs_from_another_one_of_its_length_that_stands_in_its_place(store: Run) -> None:
    ours, other = (segment_of(SESSION.id, 0, [(ORDERS, stamped_run(0, batch_of(value * MIB)))]) for value in (b"a", b"b"))
    assert ours.size_bytes == other.size_bytes

    async def scenario(store: ObjectStore) -> None:
        await store.create(segment_key(SESSION.id, FIRST), other.body, crc32c=other.crc32c)
        with pytest.raises(AlreadyExists):
            await created_for_certain(store, segment_key(SESSION.id, FIRST), ours)
        assert await is_segment_there(store, SESSION.id, FIRST, other.body)
        with pytest.raises(Corrupt):
            await is_segment_there(store, SESSION.id, FIRST, ours.body)

    store(scenario)


# Keys


def test_a_key_that_no_object_may_have_is_refused_everywhere(store: Run) -> None:
    impossible = ["", "/", "/etc/passwd", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b", "a/../b", ".tmp/a", ".hidden"]
    impossible += ["a b", "ä", "a\0b", "a\n", "a\\b", "a%2fb", "a?b", "a*", "a" * 256, "/".join(["a" * 255] * 3)]

    async def scenario(store: ObjectStore) -> None:
        for key in impossible:
            for call in (store.create(key, [b"x"]), store.get(key), store.tail(key, 1), store.delete(key)):
                with pytest.raises(InvalidArgument):
                    await call
        assert await keys_below(store, "") == []

    store(scenario)


def test_every_key_of_the_layout_can_be_made(store: Run) -> None:
    longest = "/".join(["topics", "t" * 249, "f" * 32, "_log", "00000", "0" * 20])
    keys = ["cluster.json", "topics/...x/topic.json", "topics/-_./0/partition=7/0-1-a.parquet", "wal/00/trimmed-0f", longest]

    async def scenario(store: ObjectStore) -> None:
        for key in keys:
            await store.create(key, [key.encode()])
        for key in keys:
            assert await store.get(key) == key.encode()
        assert await keys_below(store, "") == sorted(keys)

    store(scenario)
