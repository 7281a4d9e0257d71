"""A broker's registration: its form, how others ask it to drain, and how everyone follows all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from metadata.cluster.broker_registry import (
    FORMAT_VERSION,
    BrokerCache,
    BrokerRegistration,
    Candidate,
    KafkaListener,
    check_broker_id,
    decode_registration,
    encode_registration,
    read_brokers,
    write_draining,
)
from metadata.errors import InvalidArgument, NotFound, Rejected
from metadata.model import Revision, SessionId
from metadata.store.interface import NO_LEASE, Delete, KeyValue, LeaseId, Put
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from tests.kit.metadata.faulty_store import FaultyStore, unavailable
from tests.simulation.virtual_loop import run, virtual_loop

LAYOUT = KeyLayout()
REGISTRATION = BrokerRegistration(broker_id="b1", session=SessionId(9), http_address="10.0.0.7:8080", rack="eu-1a", version="0.1.0")


def with_broker(path: Path, scenario: Callable[[FaultyStore, LeaseId], Awaitable[None]], registration: BrokerRegistration) -> None:
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


def test_a_field_that_another_has_changed_meanwhile_is_kept(tmp_path: Path) -> None:
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
def test_a_text_that_is_no_broker_id_is_refused(broker_id: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a broker id"):
        check_broker_id(broker_id)


# ── the brokers that are alive ──────────────────────────────────────────────────────────────────────────────────────────


def with_cache(scenario: Callable[[FaultyStore, BrokerCache], Awaitable[None]]) -> None:
    """A cache that follows."""

    async def main() -> None:
        store = FaultyStore(SqliteStore(Path(":memory:"), clock=virtual_loop().time))
        cache = BrokerCache(store, LAYOUT)
        following = asyncio.ensure_future(cache.run())
        await scenario(store, cache)
        following.cancel()
        await store.close()

    run(main())


async def register(store: FaultyStore, cache: BrokerCache, broker_id: str, value: bytes, lease: LeaseId = NO_LEASE) -> None:
    """And waits until the cache has heard of it."""
    result = await store.transact([], [Put(LAYOUT.broker(broker_id), value, lease)])
    assert await cache.wait_for(result.revision, timeout_s=1)


def broker(broker_id: str, session: int) -> bytes:
    return encode_registration(BrokerRegistration(broker_id=broker_id, session=SessionId(session)))


def sessions(cache: BrokerCache) -> dict[str, int]:
    return {broker_id: registration.session for broker_id, registration in cache.brokers.items()}


def test_the_cache_knows_brokers_by_their_ids_and_by_their_sessions_until_they_are_gone() -> None:
    async def scenario(store: FaultyStore, cache: BrokerCache) -> None:
        changes: list[dict[str, int]] = []
        enough = cache.subscribe(lambda: changes.append(sessions(cache)))
        lease = await store.grant_lease(60)
        await register(store, cache, "b1", broker("b1", 1), lease)
        await register(store, cache, "b2", broker("b2", 2))
        await register(store, cache, "b2", broker("b2", 3))
        assert cache.by_session(SessionId(2)) is None, "a session that another has followed under its id is gone"
        found = cache.by_session(SessionId(3))
        assert found is not None
        assert found.broker_id == "b2"
        await store.revoke_lease(lease)
        await asyncio.sleep(0.1)
        assert cache.by_session(SessionId(1)) is None
        enough()
        await register(store, cache, "b4", broker("b4", 4))
        assert changes == [{}, {"b1": 1}, {"b1": 1, "b2": 2}, {"b1": 1, "b2": 3}, {"b2": 3}]

    with_cache(scenario)


def test_a_hole_in_history_takes_those_who_left_meanwhile_off_the_list() -> None:
    async def scenario(store: FaultyStore, cache: BrokerCache) -> None:
        await register(store, cache, "b1", broker("b1", 1))
        store.down = unavailable()
        await store.store.transact([], [Put(LAYOUT.broker("b2"), broker("b2", 2)), Delete(LAYOUT.broker("b1"))])
        await store.store.compact((await store.store.range("/")).revision)
        await asyncio.sleep(10)
        store.down = None
        await asyncio.sleep(10)
        assert sessions(cache) == {"b2": 2}
        assert cache.by_session(SessionId(1)) is None

    with_cache(scenario)


UNREADABLE = (b"", b"{", b"\xff", b'{"broker_id":"b1"}', b'{"broker_id":"b1","session":"one"}')


@pytest.mark.parametrize("value", UNREADABLE)
def test_an_unreadable_registration_is_no_broker_and_blocks_no_other_registration(value: bytes) -> None:
    """A key that somebody has written by hand must not stop the cluster from replacing its dead."""

    async def scenario(store: FaultyStore, cache: BrokerCache) -> None:
        await register(store, cache, "b1", broker("b1", 1))
        await register(store, cache, "b2", broker("b2", 2))
        await register(store, cache, "b1", value)
        assert sessions(cache) == {"b2": 2}
        assert cache.by_session(SessionId(1)) is None
        assert set(await read_brokers(store, LAYOUT)) == {"b2"}
        await register(store, cache, "b1", broker("b1", 5))
        assert sessions(cache) == {"b1": 5, "b2": 2}

    with_cache(scenario)


def test_a_key_that_names_another_broker_hides_none() -> None:
    async def scenario(store: FaultyStore, cache: BrokerCache) -> None:
        await register(store, cache, "b1", broker("b1", 1))
        await register(store, cache, "b2", broker("b1", 2))
        assert {broker_id: held.registration.session for broker_id, held in (await read_brokers(store, LAYOUT)).items()} == {
            "b1": 1,
            "b2": 2,
        }

    with_cache(scenario)


def test_a_field_that_a_newer_version_has_added_is_skipped() -> None:
    async def scenario(store: FaultyStore, cache: BrokerCache) -> None:
        await register(store, cache, "b1", b'{"format_version":9,"broker_id":"b1","session":1,"new":[1],"rack":"r"}')
        assert sessions(cache) == {"b1": 1}
        assert cache.brokers["b1"].candidate == Candidate(SessionId(1), "r")

    with_cache(scenario)


# ── Kafka's names for a broker ──────────────────────────────────────────────────────────────────────────────────────────


PUBLIC = KafkaListener(name="public", host="kafka-0.example.org", port=9092, security_protocol="SASL_SSL")
PRIVATE = KafkaListener(name="private", host="10.0.0.7", port=9093)


def stored(value: bytes) -> BrokerRegistration:
    return decode_registration(KeyValue(LAYOUT.broker("b1"), value, Revision(1), Revision(1), 1)).registration


def test_a_registration_keeps_its_node_id_and_its_kafka_listeners() -> None:
    registration = msgspec.structs.replace(REGISTRATION, node_id=7, kafka_listeners=(PUBLIC, PRIVATE))
    read = stored(encode_registration(registration))
    assert read == registration
    assert read.kafka_listener("private") == PRIVATE
    assert read.kafka_listener("other") is None


def test_a_registration_from_before_node_ids_has_none_and_no_kafka_listener() -> None:
    read = stored(b'{"format_version":1,"broker_id":"b1","session":9,"http_address":"h:1","draining":false}')
    assert (read.node_id, read.kafka_listeners) == (-1, ())
