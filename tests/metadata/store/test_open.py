"""From the settings to an open store, with what it needs running beside it."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from metadata.errors import OutcomeUnknown, Stopping, Unavailable
from metadata.store.etcd import store as etcd_store
from metadata.store.etcd.settings import EtcdSettings
from metadata.store.interface import MetadataStore, Put
from metadata.store.open import open_metadata
from metadata.store.sqlite import store as sqlite_store
from tests.kit.etcd_server import SHARED, settings
from tests.kit.metadata.stores import run, until

EMBEDDED = EtcdSettings()
EACH = [pytest.param(False, id="sqlite"), pytest.param(True, id="etcd", marks=pytest.mark.slow)]


def opener(on_etcd: bool, directory: Path) -> AbstractAsyncContextManager[MetadataStore]:
    etcd = settings(SHARED.member.url) if on_etcd else EMBEDDED
    return open_metadata(etcd, directory / "metadata.sqlite", prefix="/tidelog/")


@pytest.mark.parametrize("on_etcd", EACH)
def test_the_store_serves_inside_and_is_closed_outside(tmp_path: Path, on_etcd: bool) -> None:
    async def test() -> None:
        async with opener(on_etcd, tmp_path) as store:
            key = f"/{uuid.uuid4().hex}"
            await store.transact([], [Put(key, b"1")])
            assert await store.get(key) is not None
        with pytest.raises(Stopping):
            await store.get(key)
        assert (tmp_path / "metadata.sqlite").exists() != on_etcd

    run(test())


@pytest.mark.parametrize("on_etcd", EACH)
def test_an_error_comes_out_as_it_was_raised(tmp_path: Path, on_etcd: bool) -> None:
    async def test() -> None:
        async with opener(on_etcd, tmp_path):
            raise OutcomeUnknown("the body fails") from ValueError("of that")

    with pytest.raises(OutcomeUnknown, match="the body fails") as raised:
        run(test())
    assert str(raised.value.__cause__) == "of that"


@pytest.mark.parametrize("on_etcd", EACH)
def test_the_housekeeping_runs_beside_the_store(tmp_path: Path, on_etcd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "HOUSEKEEPING_INTERVAL_S", 0)
    monkeypatch.setattr(etcd_store, "PROBE_INTERVAL_S", 0)
    rounds = 0

    async def counted(store: object) -> None:
        nonlocal rounds
        rounds += 1
        await asyncio.sleep(0)

    monkeypatch.setattr("metadata.store.sqlite.store.SqliteStore._compact_history", counted)
    monkeypatch.setattr("metadata.store.etcd.client.EtcdClient.probe", counted)

    async def test() -> None:
        async with opener(on_etcd, tmp_path):
            await until(lambda: rounds > 3)

    run(test())


@pytest.mark.parametrize("on_etcd", EACH)
def test_cancelling_the_body_closes_the_store(tmp_path: Path, on_etcd: bool) -> None:
    async def test() -> None:
        opened: list[MetadataStore] = []

        async def body() -> None:
            async with opener(on_etcd, tmp_path) as store:
                opened.append(store)
                await asyncio.Event().wait()

        task = asyncio.ensure_future(body())
        await until(lambda: bool(opened))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(Stopping):
            await opened[0].get("/a")

    run(test())


@pytest.mark.slow
def test_an_etcd_that_does_not_answer_fails_the_start(tmp_path: Path) -> None:
    async def test() -> None:
        with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:1"):
            async with open_metadata(settings("http://127.0.0.1:1", etcd_deadline_ms=200), tmp_path / "unused", prefix="/"):
                pass
        assert not (tmp_path / "unused").exists()

    run(test())
