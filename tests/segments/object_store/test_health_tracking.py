"""The health of the bucket as its calls show it; outages of writes are logged, and so is their end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import pytest

from metadata.errors import AlreadyExists, Denied, NotFound, OutcomeUnknown, Unavailable
from segments.object_store.health import HealthState
from segments.object_store.health_tracking import HealthTrackingObjectStore, StoreTrouble, Unwritable
from segments.object_store.interface import Buffer
from segments.object_store.memory import MemoryObjectStore
from tests.simulation.virtual_loop import run


class Moody(MemoryObjectStore):
    """Raises `trouble` while there is one."""

    trouble: Exception | None = None

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self.answers.set()

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        if self.trouble is not None:
            raise self.trouble
        await self.answers.wait()
        await super().create(key, body, crc32c=crc32c)


KEYS = itertools.count()


async def write(store: HealthTrackingObjectStore, body: bytes = b"12345678") -> None:
    await store.create(f"key-{next(KEYS)}", [body])


async def fail_for(store: HealthTrackingObjectStore, seconds: float) -> None:
    """A create four times a second, as retries come."""
    for _ in range(round(seconds * 4)):
        with pytest.raises((Unavailable, OutcomeUnknown, Denied)):
            await write(store)
        await asyncio.sleep(0.25)


def test_an_outage_is_logged_when_it_begins_each_minute_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    async def session() -> None:
        bucket = Moody()
        store = HealthTrackingObjectStore(bucket)
        await write(store)
        bucket.trouble = Unavailable("no space left on device")
        await fail_for(store, 130)
        bucket.trouble = None
        await write(store)
        await write(store)

    run(session())
    first, *repeated, last = caplog.messages
    assert first.startswith("the bucket takes no writes: no space left on device. What was acknowledged is safe")
    assert repeated == [f"the bucket has taken no writes for {seconds} s: no space left on device" for seconds in (61, 121)]
    assert last == "the bucket takes writes again, after 130 s"


def test_a_failure_between_two_writes_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def session() -> None:
        bucket = Moody()
        store = HealthTrackingObjectStore(bucket)
        for _ in range(20):
            bucket.trouble = OutcomeUnknown("no answer")
            await fail_for(store, 0.25)
            bucket.trouble = None
            await write(store)

    run(session())
    assert caplog.messages == []


def test_a_small_object_that_a_full_disk_still_takes_is_not_taken_for_the_end(caplog: pytest.LogCaptureFixture) -> None:
    async def session() -> None:
        bucket = Moody()
        store = HealthTrackingObjectStore(bucket)
        bucket.trouble = Unavailable("no space left on device")
        await fail_for(store, 2)
        bucket.trouble = None
        await write(store, b"seal")
        bucket.trouble = Unavailable("no space left on device")
        await fail_for(store, 2)
        assert len(caplog.messages) == 1
        bucket.trouble = None
        await asyncio.sleep(10)
        await write(store, b"seal")

    run(session())
    assert caplog.messages[1:] == ["the bucket takes writes again, after 14 s"]


def test_an_object_that_exists_is_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def session() -> None:
        bucket = Moody()
        store = HealthTrackingObjectStore(bucket)
        await store.create("taken", [b"12345678"])
        bucket.trouble = Denied("no credentials")
        await fail_for(store, 2)
        bucket.trouble = None
        with pytest.raises(AlreadyExists):
            await store.create("taken", [b"87654321"])

    run(session())
    assert [message.split(":")[0] for message in caplog.messages] == [
        "the bucket takes no writes",
        "the bucket takes writes again, after 2 s",
    ]


def test_everything_else_goes_through() -> None:
    async def session() -> None:
        bucket = MemoryObjectStore()
        store = HealthTrackingObjectStore(bucket)
        await store.create("a", [b"one ", b"two"])
        assert store.url == bucket.url
        assert await store.get("a", start=4) == b"two"
        assert (await store.tail("a", 3)).body == b"two"
        assert [found.key for found in (await store.list("")).objects] == ["a"]
        await store.delete("a")
        assert (await store.list("")).objects == ()
        await store.close()

    run(session())


def test_the_trouble_can_be_asked_for_while_it_lasts() -> None:
    found: list[StoreTrouble | None] = []

    async def main() -> None:
        bucket = Moody()
        store = HealthTrackingObjectStore(bucket)
        bucket.trouble = Unavailable("no space left on device", hint="Make room.")
        await fail_for(store, 0.5)
        found.append(store.trouble)  # it may be a hiccup
        await fail_for(store, 2)
        found.append(store.trouble)
        bucket.trouble = None
        await write(store)
        found.append(store.trouble)

    run(main())
    assert found == [None, StoreTrouble("the bucket takes no writes: no space left on device", "Make room."), None]


def test_a_write_without_an_answer_and_an_abandoned_one_count_as_unwritable_bytes() -> None:
    async def main() -> None:
        bucket = Moody()
        store = HealthTrackingObjectStore(bucket)
        assert [store.unwritable] == [None]
        bucket.answers.clear()
        writing = asyncio.ensure_future(write(store))
        await asyncio.sleep(3)
        assert store.unwritable == Unwritable(for_s=3.0, bytes_min=8)
        writing.cancel()
        await asyncio.sleep(2)
        assert store.unwritable == Unwritable(for_s=5.0, bytes_min=8)
        assert store.trouble is not None
        await asyncio.sleep(10)
        assert [store.unwritable] == [None], "no write was attempted since"
        bucket.answers.set()
        await write(store)
        assert store.trouble is None

    run(main())


def test_the_slower_one_of_two_writes_that_is_given_up_is_no_failure() -> None:
    async def main() -> None:
        bucket = Moody()
        store = HealthTrackingObjectStore(bucket)
        assert [store.unwritable] == [None]
        bucket.answers.clear()
        slow = asyncio.ensure_future(write(store))
        await asyncio.sleep(2)
        bucket.answers.set()
        await write(store)
        slow.cancel()
        await asyncio.sleep(0)
        assert store.unwritable is None

    run(main())


def test_the_health_of_the_bucket_follows_the_outcomes_of_calls_of_all_kinds() -> None:
    class Unreadable(Moody):
        async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
            if self.trouble is not None:
                raise self.trouble
            return await super().get(key, start=start, end=end)

    states: list[HealthState] = []
    troubles: list[bool] = []

    async def session() -> None:
        bucket = Unreadable()
        store = HealthTrackingObjectStore(bucket)

        def note() -> None:
            states.append(store.state)
            troubles.append(store.trouble is not None and "nearly all requests" in store.trouble.message)

        for _ in range(20):
            with pytest.raises(NotFound):
                await store.get("nothing")
        note()  # it has answered
        await asyncio.sleep(60)
        bucket.trouble = Unavailable("connection refused")
        for _ in range(20):
            with pytest.raises(Unavailable):
                await store.get("nothing")
        note()
        bucket.trouble = None
        for _ in range(3):
            await write(store)
        note()

    run(session())
    assert states == [HealthState.HEALTHY, HealthState.UNAVAILABLE, HealthState.DEGRADED]
    assert troubles == [False, True, False]


def test_a_read_abandoned_after_a_while_counts_as_failed_and_one_abandoned_at_once_does_not() -> None:
    class Silent(MemoryObjectStore):
        async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
            await asyncio.Event().wait()
            raise AssertionError

    async def session() -> None:
        store = HealthTrackingObjectStore(Silent())
        for patience_s, state in ((0.1, HealthState.HEALTHY), (6.0, HealthState.UNAVAILABLE)):
            reads = [asyncio.wait_for(store.get("key"), patience_s) for _ in range(10)]
            found = await asyncio.gather(*reads, return_exceptions=True)
            assert all(isinstance(error, TimeoutError) for error in found)
            assert store.state is state

    run(session())
