"""A session's place among the brokers: joined once, kept by its lease, and lost for good."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from gateway.cluster.broker_lease import BrokerLease
from metadata.cluster.broker_registry import BrokerRegistration, KafkaListener, encode_registration, read_brokers, write_draining
from metadata.errors import Denied, Rejected
from metadata.model import SessionId
from metadata.store.interface import NO_LEASE, Delete, KeyValue, LeaseId, Put
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from tests.kit.metadata.faulty_store import FaultyStore, unavailable
from tests.simulation.virtual_loop import run, virtual_loop

LAYOUT = KeyLayout()
KEY = LAYOUT.broker("b1")
TTL_S = 9.0


class Store(FaultyStore):
    """Of which lease calls fail, too, while it is down."""

    async def grant_lease(self, ttl_s: float) -> LeaseId:
        self._check_up()
        return await super().grant_lease(ttl_s)

    async def keep_alive(self, lease: LeaseId) -> float:
        self._check_up()
        return await super().keep_alive(lease)

    async def revoke_lease(self, lease: LeaseId) -> None:
        self._check_up()
        await super().revoke_lease(lease)

    async def held(self) -> KeyValue | None:
        """What is really there."""
        return await self.store.get(KEY)

    async def session(self) -> int | None:
        found = (await read_brokers(self.store, LAYOUT)).get("b1")
        return found.registration.session if found else None


def broker_lease(store: Store, session: int = 1, *, port: int = 8080, own: frozenset[SessionId] = frozenset()) -> BrokerLease:
    http, grpc = f"10.0.0.7:{port}", f"10.0.0.7:{port + 1}"
    registration = BrokerRegistration(broker_id="b1", session=SessionId(session), http_address=http, grpc_address=grpc)
    return BrokerLease(store, LAYOUT, registration, ttl_s=TTL_S, own_sessions=own)


def with_store(scenario: Callable[[Store], Awaitable[None]]) -> None:
    async def main() -> None:
        sqlite = SqliteStore(Path(":memory:"), clock=virtual_loop().time)
        housekeeping = asyncio.ensure_future(sqlite.run())
        await scenario(Store(sqlite))
        housekeeping.cancel()
        await sqlite.close()

    run(main())


def is_sure(broker_lease: BrokerLease) -> bool:
    """Reads the property at each call."""
    return broker_lease.is_valid


async def pass_s(seconds: float) -> None:
    await asyncio.sleep(seconds)


# ── join ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_session_is_registered_under_a_lease_and_gone_when_it_leaves() -> None:
    async def scenario(store: Store) -> None:
        joined = broker_lease(store)
        assert not is_sure(joined)
        assert await joined.join()
        assert is_sure(joined)
        held = await store.held()
        assert held is not None
        assert held.lease == joined.lease != NO_LEASE
        await joined.leave()
        assert await store.held() is None
        await joined.leave()  # twice is no error

    with_store(scenario)


def test_a_broker_that_has_not_joined_leaves_without_a_request() -> None:
    async def scenario(store: Store) -> None:
        store.down = unavailable()
        await broker_lease(store).leave()

    with_store(scenario)


@pytest.mark.slow
def test_a_store_that_is_away_is_waited_for() -> None:
    async def scenario(store: Store) -> None:
        store.down = unavailable()
        joining = asyncio.ensure_future(broker_lease(store).join())
        await pass_s(3600)
        store.down = None
        assert await joining
        assert await store.session() == 1

    with_store(scenario)


def test_the_registration_of_an_earlier_process_is_removed_at_once_with_all_that_it_held() -> None:
    async def scenario(store: Store) -> None:
        earlier = broker_lease(store, 1)
        assert await earlier.join()
        assert earlier.lease is not None
        await store.store.transact([], [Put(LAYOUT.controller, b"b1 1", earlier.lease)])
        assert await broker_lease(store, 2).join()
        assert await store.session() == 2
        assert await store.store.get(LAYOUT.controller) is None, "no broker waits for a controller that is dead"

    with_store(scenario)


def test_a_broker_that_was_killed_and_comes_back_at_its_address_is_no_cause_for_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def scenario(store: Store) -> None:
        assert await broker_lease(store, 1).join()
        assert await broker_lease(store, 2).join()
        assert await broker_lease(store, 3, own=frozenset({SessionId(2)})).join()  # its own, which it could not leave

    with_store(scenario)
    reported = [
        (record.levelname, record.getMessage()) for record in caplog.records if "registration replaced" in record.getMessage()
    ]
    former = "session 1, at http 10.0.0.7:8080, grpc 10.0.0.7:8081"
    assert reported == [("INFO", f"registration replaced key=/tidelog/brokers/b1: its {former} did not end in order")]
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_a_registration_without_a_lease_is_replaced() -> None:
    async def scenario(store: Store) -> None:
        await store.store.transact([], [Put(KEY, b"by hand")])
        joined = broker_lease(store)
        assert await joined.join()
        held = await store.held()
        assert held is not None
        assert held.lease == joined.lease

    with_store(scenario)


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_where_it_is_not_certain_that_it_was_registered_the_session_is_given_up(lost: str) -> None:
    """It may be seen as registered and gone, or be seen so later: then it must not come again."""

    async def scenario(store: Store) -> None:
        store.lose_answers, store.lose_requests = int(lost == "answer"), int(lost == "request")
        doubtful = broker_lease(store)
        assert not await doubtful.join()
        assert (await store.session() == 1) == (lost == "answer")
        await doubtful.leave()
        assert await store.held() is None

    with_store(scenario)


def test_a_lease_that_ends_before_the_session_is_registered_asks_for_a_new_session() -> None:
    async def scenario(store: Store) -> None:
        store.before_transaction = lambda: pass_s(TTL_S + 2)
        assert not await broker_lease(store).join()
        assert await store.held() is None

    with_store(scenario)


def test_of_two_that_join_at_once_one_does_and_the_other_takes_its_time_before_it_tries_again() -> None:
    """Each try costs a session: a claim and a seal on the bucket."""

    async def scenario(store: Store) -> None:
        other = broker_lease(store, 2)
        store.before_transaction = other.join
        before_s = virtual_loop().time()
        assert not await broker_lease(store, 1).join()
        assert virtual_loop().time() - before_s >= 0.5
        assert await store.session() == 2

    with_store(scenario)


# ── keep ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_lease_is_renewed_for_as_long_as_it_is_kept() -> None:
    async def scenario(store: Store) -> None:
        kept = broker_lease(store)
        await kept.join()
        keeping = asyncio.ensure_future(kept.keep())
        for _ in range(100):
            await pass_s(10)
            assert kept.is_valid
            assert await store.session() == 1
        keeping.cancel()
        await asyncio.wait((keeping,))
        assert not kept.is_valid
        await pass_s(TTL_S + 2)
        assert await store.held() is None

    with_store(scenario)


def test_a_store_that_is_away_for_less_than_the_lease_is_nothing() -> None:
    async def scenario(store: Store) -> None:
        kept = broker_lease(store)
        await kept.join()
        keeping = asyncio.ensure_future(kept.keep())
        await pass_s(4)
        store.down = unavailable()
        await pass_s(TTL_S / 2)
        store.down = None
        await pass_s(60)
        assert not keeping.done()
        assert await store.session() == 1
        keeping.cancel()

    with_store(scenario)


@pytest.mark.parametrize("error", [unavailable(), Denied("the token has expired")])
def test_a_store_that_is_away_for_longer_makes_it_unsure_and_the_registration_is_lost_when_it_is_back(error: Exception) -> None:
    async def scenario(store: Store) -> None:
        kept = broker_lease(store)
        await kept.join()
        keeping = asyncio.ensure_future(kept.keep())
        store.down = error  # type: ignore[assignment]
        await pass_s(TTL_S + 5)
        assert not kept.is_valid
        assert not keeping.done(), "whether it is lost is not known yet: the leader goes on"
        assert await store.held() is None
        store.down = None
        await asyncio.wait_for(keeping, 10)

    with_store(scenario)


def test_a_lease_that_ends_early_is_noticed_at_the_next_renewal() -> None:
    async def scenario(store: Store) -> None:
        kept = broker_lease(store)
        await kept.join()
        keeping = asyncio.ensure_future(kept.keep())
        assert kept.lease is not None
        await store.store.revoke_lease(kept.lease)
        await asyncio.wait_for(keeping, TTL_S / 3 + 1)
        assert not kept.is_valid

    with_store(scenario)


def test_a_registration_that_the_controller_has_removed_is_lost_though_its_lease_is_not() -> None:
    async def scenario(store: Store) -> None:
        kept = broker_lease(store)
        await kept.join()
        keeping = asyncio.ensure_future(kept.keep())
        await store.store.transact([], [Delete(KEY)])
        await asyncio.wait_for(keeping, TTL_S / 3 + 1)
        assert not kept.is_valid

    with_store(scenario)


def test_a_registration_that_can_not_be_read_any_more_is_lost() -> None:
    async def scenario(store: Store) -> None:
        kept = broker_lease(store)
        await kept.join()
        assert kept.lease is not None
        keeping = asyncio.ensure_future(kept.keep())
        await pass_s(1)
        await store.store.transact([], [Put(KEY, b"{", kept.lease)])
        await asyncio.wait_for(keeping, TTL_S / 3 + 1)
        await kept.leave()
        assert await broker_lease(store, 2).join()
        assert await store.session() == 2

    with_store(scenario)


def test_of_two_processes_with_one_id_the_older_one_stops_and_both_say_who_the_other_is(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(store: Store) -> None:
        older, newer = broker_lease(store, 1), broker_lease(store, 2, port=9000)
        await older.join()
        keeping = asyncio.ensure_future(older.keep())
        await newer.join()
        with pytest.raises(Rejected, match="another process has registered") as stopped:
            await asyncio.wait_for(keeping, TTL_S / 3 + 1)
        assert "session 2, at http 10.0.0.7:9000, grpc 10.0.0.7:9001" in stopped.value.message
        assert "--broker-id" in stopped.value.hint
        await older.leave()
        assert await store.session() == 2, "the older one takes nothing with it"
        with pytest.raises(Rejected, match=r"session 2, at http 10\.0\.0\.7:9000"):  # it was cut off, and comes back
            await broker_lease(store, 3, own=frozenset({SessionId(1)})).join()
        reported = [record.getMessage() for record in caplog.records if "another process has this id" in record.getMessage()]
        assert [message.split(";")[0] for message in reported] == [
            (
                "registration replaced key=/tidelog/brokers/b1: another process has this id, "
                "session 1, at http 10.0.0.7:8080, grpc 10.0.0.7:8081"
            )
        ]

    with_store(scenario)


# ── drain ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_drain_is_registered_at_once_and_the_lease_is_renewed_meanwhile() -> None:
    async def scenario(store: Store) -> None:
        kept = broker_lease(store)
        await kept.join()
        keeping = asyncio.ensure_future(kept.keep())
        await pass_s(1)
        kept.drain()
        await pass_s(0.01)
        assert (await read_brokers(store, LAYOUT))["b1"].registration.draining
        writes = len(store.transactions)
        await pass_s(100)
        assert await store.session() == 1
        assert len(store.transactions) == writes, "once is enough"
        keeping.cancel()

    with_store(scenario)


def test_a_drain_during_an_outage_of_the_store_is_registered_after_it() -> None:
    async def scenario(store: Store) -> None:
        kept = broker_lease(store)
        await kept.join()
        keeping = asyncio.ensure_future(kept.keep())
        store.down = unavailable()
        kept.drain()
        await pass_s(2)
        store.down = None
        await pass_s(1)
        assert (await read_brokers(store, LAYOUT))["b1"].registration.draining
        keeping.cancel()

    with_store(scenario)


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_drain_whose_request_or_answer_is_lost_is_registered_by_a_retry(lost: str) -> None:
    async def scenario(store: Store) -> None:
        kept = broker_lease(store)
        await kept.join()
        keeping = asyncio.ensure_future(kept.keep())
        store.lose_answers, store.lose_requests = int(lost == "answer"), int(lost == "request")
        kept.drain()
        await pass_s(1)
        assert (await read_brokers(store, LAYOUT))["b1"].registration.draining
        assert not keeping.done()
        keeping.cancel()

    with_store(scenario)


def test_a_change_that_others_have_written_into_the_registration_stays() -> None:
    async def scenario(store: Store) -> None:
        kept = broker_lease(store)
        await kept.join()
        assert kept.lease is not None
        moved = BrokerRegistration(broker_id="b1", session=SessionId(1), rack="elsewhere")
        await store.store.transact([], [Put(KEY, encode_registration(moved), kept.lease)])
        keeping = asyncio.ensure_future(kept.keep())
        kept.drain()
        await pass_s(1)
        found = (await read_brokers(store, LAYOUT))["b1"].registration
        assert found == msgspec.structs.replace(moved, draining=True)
        keeping.cancel()

    with_store(scenario)


def test_fields_that_a_broker_of_an_earlier_version_has_dropped_from_the_registration_are_written_again() -> None:
    async def scenario(store: Store) -> None:
        listener = KafkaListener(name="public", host="kafka.example.org", port=9092)
        own = BrokerRegistration(broker_id="b1", session=SessionId(1), node_id=3, kafka_listeners=(listener,))
        kept = BrokerLease(store, LAYOUT, own, ttl_s=TTL_S)
        await kept.join()
        assert kept.lease is not None
        drained = b'{"format_version":1,"broker_id":"b1","session":1,"draining":true}'
        await store.store.transact([], [Put(KEY, drained, kept.lease)])
        keeping = asyncio.ensure_future(kept.keep())
        await pass_s(1)
        found = (await read_brokers(store, LAYOUT))["b1"].registration
        assert found == msgspec.structs.replace(own, draining=True)
        keeping.cancel()

    with_store(scenario)


def test_a_drain_that_an_operator_cancels_is_not_registered_again() -> None:
    async def scenario(store: Store) -> None:
        kept = broker_lease(store)
        await kept.join()
        keeping = asyncio.ensure_future(kept.keep())
        for draining in (True, False):
            await write_draining(store, LAYOUT, "b1", draining=draining)
            await pass_s(10)
            assert (await read_brokers(store, LAYOUT))["b1"].registration.draining is draining
        keeping.cancel()

    with_store(scenario)


def test_leaving_takes_no_longer_than_its_time_when_the_store_hangs() -> None:
    async def scenario(store: Store) -> None:
        kept = broker_lease(store)
        await kept.join()

        async def hang(lease: LeaseId) -> None:
            await asyncio.Event().wait()

        store.revoke_lease = hang  # type: ignore[method-assign]
        before_s = virtual_loop().time()
        await kept.leave()
        assert virtual_loop().time() - before_s == pytest.approx(2.0)

    with_store(scenario)
