"""A broker's registration: its form, and how others ask it to drain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from metadata.broker_registry import (
    FORMAT_VERSION,
    Registration,
    check_broker_id,
    encode_registration,
    read_brokers,
    write_draining,
)
from metadata.errors import InvalidArgument, NotFound, Rejected
from metadata.etcd_layout import EtcdLayout
from metadata.model import SessionId
from metadata.sqlite_store import SqliteStore
from metadata.store import LeaseId, Put
from tests.metadata.faulty_store import FaultyStore

LAYOUT = EtcdLayout()
REGISTRATION = Registration(broker_id="b1", session=SessionId(9), http_address="10.0.0.7:8080", rack="eu-1a", version="0.1.0")


def with_broker(path: Path, scenario: Callable[[FaultyStore, LeaseId], Awaitable[None]], registration: Registration) -> None:
    """Registered under the lease that the scenario gets."""

    async def main() -> None:
        store = FaultyStore(SqliteStore(path / "metadata.sqlite"))
        try:
            lease = await store.grant_lease(60)
            await store.transact([], [Put(LAYOUT.broker("b1"), encode_registration(registration), lease)])
            await scenario(store, lease)
        finally:
            await store.close()

    asyncio.run(main())


def test_a_drain_changes_nothing_else_and_leaves_the_key_under_its_lease(tmp_path: Path) -> None:
    async def scenario(store: FaultyStore, lease: LeaseId) -> None:
        for draining in (True, False):
            revision = await write_draining(store, LAYOUT, "b1", draining=draining)
            found = (await read_brokers(store, LAYOUT))["b1"]
            assert found.registration == msgspec.structs.replace(REGISTRATION, draining=draining)
            assert (found.revision, found.lease) == (revision, lease)
        await store.revoke_lease(lease)
        assert await read_brokers(store, LAYOUT) == {}

    with_broker(tmp_path, scenario, REGISTRATION)


def test_asking_twice_writes_once(tmp_path: Path) -> None:
    async def scenario(store: FaultyStore, lease: LeaseId) -> None:
        first = await write_draining(store, LAYOUT, "b1", draining=True)
        assert await write_draining(store, LAYOUT, "b1", draining=True) == first

    with_broker(tmp_path, scenario, REGISTRATION)


def test_a_lost_answer_is_looked_up_and_a_lost_request_is_sent_again(tmp_path: Path) -> None:
    async def scenario(store: FaultyStore, lease: LeaseId) -> None:
        store.lose_answers = 1
        await write_draining(store, LAYOUT, "b1", draining=True)
        store.lose_requests = 1
        await write_draining(store, LAYOUT, "b1", draining=False)
        assert not (await read_brokers(store, LAYOUT))["b1"].registration.draining

    with_broker(tmp_path, scenario, REGISTRATION)


def test_what_another_has_changed_meanwhile_is_kept(tmp_path: Path) -> None:
    async def scenario(store: FaultyStore, lease: LeaseId) -> None:
        moved = encode_registration(msgspec.structs.replace(REGISTRATION, rack="eu-1b"))
        store.before_transaction = lambda: store.store.transact([], [Put(LAYOUT.broker("b1"), moved, lease)])
        await write_draining(store, LAYOUT, "b1", draining=True)
        found = (await read_brokers(store, LAYOUT))["b1"].registration
        assert (found.rack, found.draining) == ("eu-1b", True)

    with_broker(tmp_path, scenario, REGISTRATION)


def test_a_broker_that_goes_meanwhile_is_not_registered_again(tmp_path: Path) -> None:
    async def scenario(store: FaultyStore, lease: LeaseId) -> None:
        store.before_transaction = lambda: store.store.revoke_lease(lease)
        with pytest.raises(NotFound, match="no broker b1 is registered"):
            await write_draining(store, LAYOUT, "b1", draining=True)
        assert await read_brokers(store, LAYOUT) == {}

    with_broker(tmp_path, scenario, REGISTRATION)


def test_the_registration_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    newer = msgspec.structs.replace(REGISTRATION, format_version=FORMAT_VERSION + 1, version="9.0.0")

    async def scenario(store: FaultyStore, lease: LeaseId) -> None:
        with pytest.raises(Rejected, match=r"newer version of Tidelog \(9\.0\.0\)"):
            await write_draining(store, LAYOUT, "b1", draining=True)

    with_broker(tmp_path, scenario, newer)


@pytest.mark.parametrize("broker_id", ["", ".", "..", "a/b", "a b", "ö", "x" * 250, "a\n"])
def test_what_is_no_broker_id_is_refused(broker_id: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a broker id"):
        check_broker_id(broker_id)
