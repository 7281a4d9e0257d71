"""The checks of bucket and metadata store: what they find, how often they ask, and stores that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.cluster.store_checks import FRESH_S, TIMEOUT_S, StoreChecks
from metadata.errors import Unavailable
from metadata.store.interface import KeyValue, MetadataStore
from metadata.store.keys import KeyLayout
from segments.object_store.interface import ListPage
from segments.object_store.memory import MemoryObjectStore
from tests.kit.etcd_server import running_cluster, settings
from tests.simulation.virtual_loop import run


class Bucket(MemoryObjectStore):
    """Counts listings, which may fail or never be answered."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = 0
        self.is_silent = False
        self.error: Unavailable | None = None

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        self.listed += 1
        if self.is_silent:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return await super().list(prefix, start_after=start_after, limit=limit)


class Metadata:
    """Answers a look-up, unless it is silent."""

    is_silent = False

    async def get(self, key: str) -> KeyValue | None:
        if self.is_silent:
            await asyncio.Event().wait()
        return None


def checks_of(bucket: Bucket, metadata: Metadata) -> StoreChecks:
    return StoreChecks(bucket, cast(MetadataStore, metadata), KeyLayout(), None, now_ms=lambda: 1_000)


def statuses(checked: Any) -> list[tuple[str, str]]:
    return [(each.check, each.status) for each in checked.diagnoses]


def test_however_many_readers_ask_the_stores_are_checked_once_while_that_is_fresh() -> None:
    async def scenario() -> None:
        bucket = Bucket()
        checks = checks_of(bucket, Metadata())
        found = await asyncio.gather(*(checks.check() for _ in range(20)))
        assert statuses(found[0]) == [("bucket", "ok"), ("metadata", "ok")]
        assert bucket.listed == 1
        bucket.error = Unavailable("no route to it")
        await asyncio.sleep(FRESH_S + 0.1)
        assert statuses(await checks.check()) == [("bucket", "failed"), ("metadata", "ok")]

    run(scenario())


def test_stores_that_do_not_answer_are_reported_in_time() -> None:
    async def scenario() -> None:
        bucket, metadata = Bucket(), Metadata()
        bucket.is_silent = metadata.is_silent = True
        began_s = asyncio.get_running_loop().time()
        assert statuses(await checks_of(bucket, metadata).check()) == [("bucket", "failed"), ("metadata", "failed")]
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(TIMEOUT_S)

    run(scenario())


def test_a_reader_that_hangs_up_does_not_stop_the_others() -> None:
    async def scenario() -> None:
        bucket = Bucket()
        bucket.is_silent = True
        checks = checks_of(bucket, Metadata())
        first, second = asyncio.create_task(checks.check()), asyncio.create_task(checks.check())
        await asyncio.sleep(1)
        first.cancel()
        await asyncio.sleep(0)
        bucket.is_silent = False
        assert statuses(await second) == [("bucket", "ok"), ("metadata", "ok")]

    run(scenario())


@pytest.mark.slow
def test_each_member_of_etcd_is_judged_by_itself(tmp_path: Path) -> None:
    async def check(urls: str) -> Sequence[Any]:
        checks = StoreChecks(Bucket(), cast(MetadataStore, Metadata()), KeyLayout(), settings(urls), now_ms=lambda: 1_000)
        return (await checks.check()).diagnoses

    with running_cluster(tmp_path) as cluster:
        urls = cluster.urls
        # A busy machine makes members slow, which is a warning.
        assert "failed" not in [each.status for each in asyncio.run(check(urls))]
        cluster.members[0].kill()
        found = asyncio.run(check(urls))
        [failed] = [each for each in found if each.status == "failed"]
        assert failed.check == f"etcd {urls.split(',')[0].partition('://')[2]}"
