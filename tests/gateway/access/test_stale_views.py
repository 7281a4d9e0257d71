"""A broker that is cut off from etcd cannot learn whether a key was revoked: it serves for access_max_age_ms, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from gateway.access.admin import AccessAdmin
from gateway.access.authentication import Authenticator
from gateway.access.authorization import AuthorizedCall, CallOrigin, Principal
from gateway.access.guard import AccessGuard
from gateway.access.peer_tokens import FORWARDED_BY, PEER_KEY, PEER_PRINCIPAL, PeerClaim, PeerTokens
from gateway.access.permissions import RequiredAccess
from gateway.access.quotas import PrincipalQuotas
from gateway.access.settings import AccessSettings
from gateway.net.tls.client_subject import ClientSubject
from metadata.access.acl import Acl, encode_acl
from metadata.access.api_key import parse_key
from metadata.access.cache import AccessCache
from metadata.access.quota import Quota
from metadata.access.registry import AccessRegistry
from metadata.access.scram import SHA_256, ScramUser, credential_of_salted
from metadata.errors import InvalidArgument, NotAuthorized, Unauthenticated, Unavailable
from metadata.model import Revision
from metadata.secret import Secret
from metadata.store.interface import NOW, Delete, KeyValue, Put, RangeResult, WatchBatch
from metadata.store.keys import KeyLayout
from tests.simulation.etcd_model import EtcdModel
from tests.simulation.virtual_loop import run, virtual_loop

ADMIN_KEY = "tlk_" + "ad" * 8 + "_" + "5e" * 32
LAYOUT = KeyLayout()
AGE_S = 9.0
READ = RequiredAccess(topic="read", lasts=True)

FETCH = "/tidelog.v1.Log/Fetch"


class CutOffStore:
    """What one broker reaches of the store."""

    def __init__(self, store: EtcdModel) -> None:
        self._store = store
        self.answers = True
        self.slow_s = 0.0
        """How long each read takes."""
        self.reported = asyncio.Event()
        """While it is not set, watches are silent."""
        self.reported.set()
        self.silent: dict[str, asyncio.Event] = {}
        """By prefix: the watch of these keys is silent until it is set."""
        self.steps: dict[str, asyncio.Semaphore] = {}
        """By prefix: the watch of these keys delivers so many changes."""

    async def get(self, key: str) -> KeyValue | None:
        return await self._store.get(key)

    async def range(self, prefix: str, *, start_after: str = "", limit: int = 0, revision: Revision = NOW) -> RangeResult:
        if not self.answers:
            await asyncio.sleep(1.0)
            raise Unavailable("etcd is away")
        await asyncio.sleep(self.slow_s)
        return await self._store.range(prefix, start_after=start_after, limit=limit, revision=revision)

    async def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[WatchBatch]:
        async for batch in self._store.watch(prefix, from_revision):
            await self.reported.wait()
            if prefix in self.silent:
                await self.silent[prefix].wait()
            if prefix in self.steps:
                await self.steps[prefix].acquire()
            yield batch

    def cut(self, *, answers: bool = False) -> None:
        self.answers = answers
        self.reported.clear()

    def mend(self) -> None:
        self.answers = True
        self.reported.set()


class World:
    """One broker's guard on a store that it can be cut off from, and what others change in the store meanwhile."""

    def __init__(self, etcd: EtcdModel, *, age_s_max: float | None = AGE_S) -> None:
        self.etcd = etcd
        self.store = CutOffStore(etcd)
        self.records = AccessRegistry(etcd, LAYOUT, now_ms=virtual_loop().now_ms)
        self.cache = AccessCache(self.store, LAYOUT, age_s_max=age_s_max)  # type: ignore[arg-type]  # it reads alone
        settings = AccessSettings(authentication=True, admin_principals="root")
        self.guard = AccessGuard(
            self.cache,
            Authenticator(settings, self.cache, now_ms=virtual_loop().now_ms, admin_key=parse_key(ADMIN_KEY)),
            PrincipalQuotas(self.cache, virtual_loop().time),
            None,
            self._peer("b1"),
            now_ms=virtual_loop().now_ms,
        )

    async def key(self, principal: str = "billing") -> tuple[str, str]:
        """(id, text) of a new key, which the broker has heard of."""
        made = await self.records.create_key(principal)
        assert await self.cache.wait_for("key", made.revision, 5)
        return made.key.key_id, made.text.reveal()

    async def begin(self, key: str, *, certificate: str = "", needs: RequiredAccess = READ) -> AuthorizedCall:
        shown = f"Bearer {key}" if key else ""
        subject = ClientSubject(subject=f"CN={certificate}", common_name=certificate) if certificate else None
        return await self.guard.begin(needs, shown, lambda: subject, CallOrigin("http", "GET", "127.0.0.1"))

    async def scram_user(self, user: str, password: bytes = b"of the user") -> None:
        """Stores a SCRAM user, whom the broker has heard of unless its watch is silent."""
        salted = credential_of_salted(SHA_256, password, b"salt", 4096)
        await self.records.alter_scram_user(user, lambda held: ScramUser(user=held.user, credentials=(salted,)))
        await asyncio.sleep(0.1)

    def proven(self, user: str) -> AuthorizedCall:
        """Returns a call of a SCRAM user over a Kafka connection, whose proof was valid when the connection began."""
        identity = self.guard._authentication.scram(user, SHA_256.name)
        assert identity is not None
        return self.guard.call_of(identity.principal(), READ, CallOrigin("kafka", "Fetch", "127.0.0.1"))

    def forwarded(self, key_id: str) -> AuthorizedCall:
        asserted: tuple[tuple[str, str], ...] = ((PEER_PRINCIPAL, "billing"), (PEER_KEY, key_id))
        token = self._peer("b2").sign("b1", FETCH, asserted)
        claim = PeerClaim(token, tuple(sorted((*asserted, (FORWARDED_BY, "b2")))))
        return self.guard.begin_forwarded(READ, claim, CallOrigin("grpc", FETCH, "127.0.0.1"))

    def _peer(self, broker_id: str) -> PeerTokens:
        return PeerTokens(Secret("of the cluster"), cluster_id="c", broker_id=broker_id, now_ms=virtual_loop().now_ms)


def on_stage(scenario: Callable[[World], Awaitable[None]], *, age_s_max: float | None = AGE_S) -> None:
    async def main() -> None:
        world = World(EtcdModel(virtual_loop().time), age_s_max=age_s_max)
        await world.records.add_acl(Acl(principal="billing", operation="read", resource="topic", name="orders"))
        running = asyncio.ensure_future(world.guard.run())
        assert await world.cache.read(5)
        await scenario(world)
        running.cancel()
        await asyncio.wait((running,))

    run(main())


def test_a_key_that_was_revoked_elsewhere_counts_no_longer_than_the_bound_at_a_broker_that_is_cut_off() -> None:
    async def scenario(at: World) -> None:
        key_id, key = await at.key()
        await at.begin(key)
        at.store.cut()
        await at.records.revoke_key(key_id)
        await asyncio.sleep(AGE_S / 2)
        await at.begin(key)  # it cannot know
        await asyncio.sleep(AGE_S / 2 + 0.1)
        with pytest.raises(Unavailable, match="cannot tell whether API keys and rights still hold") as refused:
            await at.begin(key)
        assert refused.value.retryable
        at.store.mend()
        await asyncio.sleep(AGE_S)
        with pytest.raises(Unauthenticated):
            await at.begin(key)

    on_stage(scenario)


def test_all_goes_on_when_the_store_answers_again() -> None:
    async def scenario(at: World) -> None:
        _, key = await at.key()
        at.store.cut()
        await asyncio.sleep(10 * AGE_S)
        assert at.cache.stale_error() is not None
        at.store.mend()
        await asyncio.sleep(AGE_S / 2)
        assert at.cache.stale_error() is None
        (await at.begin(key)).check("topic", "orders")

    on_stage(scenario)


def test_answers_of_the_store_prove_nothing_while_a_watch_lags_behind_them() -> None:
    async def scenario(at: World) -> None:
        key_id, key = await at.key()
        at.store.cut(answers=True)
        await asyncio.sleep(2 * AGE_S)
        await at.begin(key)  # nothing has changed, and that is proven
        await at.records.revoke_key(key_id)
        await asyncio.sleep(AGE_S + 0.1)
        with pytest.raises(Unavailable):
            await at.begin(key)

    on_stage(scenario)


def test_an_acl_deletion_that_the_watch_did_not_deliver_is_noticed_at_the_maximum_age() -> None:
    async def scenario(at: World) -> None:
        _, key = await at.key()
        (held,) = (await at.etcd.range(LAYOUT.acls)).items
        at.store.cut(answers=True)
        await at.etcd.transact([], [Delete(held.key)])
        await asyncio.sleep(AGE_S + 0.1)
        with pytest.raises(Unavailable):
            await at.begin(key)

    on_stage(scenario)


def test_a_quiet_store_keeps_the_view_current() -> None:
    async def scenario(at: World) -> None:
        _, key = await at.key()
        await asyncio.sleep(1_000)
        (await at.begin(key)).check("topic", "orders")

    on_stage(scenario)


def test_reads_that_first_go_to_a_silent_member_of_etcd_prove_it_all_the_same() -> None:
    async def scenario(at: World) -> None:
        _, key = await at.key()
        at.store.slow_s = AGE_S / 9  # four reads take longer than the time between two attempts
        for _ in range(100):
            await asyncio.sleep(1.0)
            await at.begin(key)

    on_stage(scenario)


def test_a_caller_that_does_not_depend_on_the_store_is_served_all_the_same() -> None:
    async def scenario(at: World) -> None:
        _, root = await at.key("root")
        at.store.cut()
        await asyncio.sleep(2 * AGE_S)
        (await at.begin(ADMIN_KEY)).check("topic", "orders")
        (await at.begin("", certificate="root")).check("topic", "orders")
        for key, certificate in ((root, ""), ("", "billing"), ("tlk_" + "0" * 16 + "_" + "0" * 64, "")):
            with pytest.raises(Unavailable):
                await at.begin(key, certificate=certificate)
        assert (await at.begin("", needs=RequiredAccess(open=True))).caller is None  # a probe
        at.forwarded("")  # it was checked where it came in

    on_stage(scenario)


@pytest.mark.parametrize("user", ["root", "billing"])
def test_a_scram_user_who_was_deleted_elsewhere_counts_no_longer_than_the_bound_though_an_administrator(user: str) -> None:
    async def scenario(at: World) -> None:
        await at.scram_user(user)
        fetch = at.proven(user)
        at.store.cut()
        await at.records.alter_scram_user(user, lambda held: ScramUser(user=held.user, credentials=()))
        await asyncio.sleep(AGE_S / 2)
        fetch.check("topic", "orders")  # it cannot know
        await asyncio.sleep(AGE_S / 2 + 0.1)
        with pytest.raises(Unavailable, match="cannot tell whether API keys and rights still hold"):
            fetch.check("topic", "orders")
        assert isinstance(fetch.end_reason(), Unavailable)
        at.store.mend()
        await asyncio.sleep(AGE_S)
        with pytest.raises(Unauthenticated, match="was changed or deleted"):
            fetch.check("topic", "orders")

    on_stage(scenario)


def test_calls_that_last_are_cut_when_the_bound_is_passed() -> None:
    async def scenario(at: World) -> None:
        _, key = await at.key()

        async def reads(shown: str) -> None:
            call = await at.begin(shown)
            call.check("topic", "orders")
            with at.guard.while_permitted(call):
                await asyncio.sleep(1_000)

        reading, as_admin = asyncio.ensure_future(reads(key)), asyncio.ensure_future(reads(ADMIN_KEY))
        await asyncio.sleep(0.1)
        at.store.cut()
        began_s = virtual_loop().time()
        with pytest.raises(Unavailable):
            await reading
        assert virtual_loop().time() - began_s <= AGE_S + 0.1
        assert not as_admin.done()
        as_admin.cancel()

    on_stage(scenario)


def test_each_message_of_a_stream_is_refused_once_the_bound_is_passed() -> None:
    async def scenario(at: World) -> None:
        _, key = await at.key()
        call = await at.begin(key)
        at.store.cut()
        await asyncio.sleep(AGE_S + 0.1)
        with pytest.raises(Unavailable):
            call.check("topic", "orders")
        with pytest.raises(Unavailable):
            at.guard.check_again(call)

    on_stage(scenario)


def test_a_store_that_was_set_back_proves_nothing() -> None:
    async def scenario(at: World) -> None:
        await at.key()
        at.store._store = EtcdModel(virtual_loop().time)
        await asyncio.sleep(2 * AGE_S)
        assert at.cache.stale_error() is not None

    on_stage(scenario)


def test_calls_that_last_go_on_when_all_keys_are_read_again_and_theirs_is_as_it_was() -> None:
    async def scenario(at: World) -> None:
        revoked_id, revoked = await at.key()
        _, key = await at.key()

        async def reads(shown: str) -> None:
            call = await at.begin(shown)
            call.check("topic", "orders")
            with at.guard.while_permitted(call):
                await asyncio.sleep(1_000)

        reading, reading_revoked = asyncio.ensure_future(reads(key)), asyncio.ensure_future(reads(revoked))
        await asyncio.sleep(0.1)
        checked = await at.begin(key)
        before = at.cache.key(parse_key(key).key_id)  # type: ignore[union-attr]  # it is one
        at.store.reported.clear()
        await at.records.revoke_key(revoked_id)
        await at.etcd.compact((await at.etcd.range(LAYOUT.api_keys)).revision)
        at.etcd.restart()  # the watch goes on where it stood, and what follows there is compacted away
        at.store.reported.set()
        await asyncio.sleep(AGE_S / 2)
        assert at.cache.key(parse_key(key).key_id) is not before, "the keys were read again"  # type: ignore[union-attr]
        with pytest.raises(Unauthenticated, match="was revoked"):
            await reading_revoked
        assert not reading.done()
        at.guard.check_again(checked)
        checked.check("topic", "orders")
        reading.cancel()

    on_stage(scenario)


def test_a_store_of_the_broker_itself_is_never_stale() -> None:
    async def scenario(at: World) -> None:
        _, key = await at.key()
        at.store.cut()
        await asyncio.sleep(100 * AGE_S)
        await at.begin(key)

    on_stage(scenario, age_s_max=None)


def test_a_leader_refuses_a_forwarded_call_of_a_key_that_it_knows_to_be_revoked() -> None:
    async def scenario(at: World) -> None:
        key_id, _ = await at.key()
        other_id, _ = await at.key()
        at.forwarded(key_id)
        _, revision = await at.records.revoke_key(key_id)
        assert await at.cache.wait_for("key", revision, 5)
        with pytest.raises(Unauthenticated, match="was revoked"):
            at.forwarded(key_id)
        at.forwarded(other_id)
        at.forwarded("0" * 16)  # made a moment ago, perhaps: the broker that has checked it knows more

    on_stage(scenario)


def test_a_change_is_in_force_when_its_call_returns_though_another_watch_is_ahead() -> None:
    async def scenario(at: World) -> None:
        key_id, key = await at.key()
        await at.begin(key)
        admin = AccessAdmin(at.records, at.cache)
        keys_are_heard_of = at.store.silent[LAYOUT.api_keys] = asyncio.Event()
        revoking = asyncio.ensure_future(admin.revoke_key(key_id, validate_only=False))
        await asyncio.sleep(0.1)
        await admin.set_quota(Quota(principal="billing", requests_per_second=5), validate_only=False)
        await asyncio.sleep(1)
        assert not revoking.done(), "this broker takes the key still"
        keys_are_heard_of.set()
        await revoking
        with pytest.raises(Unauthenticated):
            await at.begin(key)

    on_stage(scenario)


@pytest.mark.parametrize("age_ms", [-1.0, float("inf"), float("nan")])
def test_the_bound_is_a_number(age_ms: float) -> None:
    with pytest.raises(InvalidArgument, match="access_max_age_ms"):
        AccessSettings(access_max_age_ms=age_ms)


def test_while_an_acl_can_not_be_read_every_check_is_refused_and_lasting_calls_end() -> None:
    """It may be a denial: damaged, or of a newer version of Tidelog."""

    async def main() -> None:
        store = EtcdModel(virtual_loop().time)
        cache = AccessCache(store, LAYOUT, age_s_max=None)
        following = asyncio.ensure_future(cache.run())
        allowed = Acl(principal="billing", operation="read", resource="topic", name="orders")
        await store.transact([], [Put(LAYOUT.acl(allowed.acl_id), encode_acl(allowed))])
        await asyncio.sleep(1)
        principal = Principal("billing", cache, lambda: 0, credential="API key x")

        def call() -> AuthorizedCall:
            return AuthorizedCall(principal, READ, CallOrigin("grpc", FETCH, ""), refusal=lambda *_: None)

        stream = call()
        stream.check("topic", "orders")
        await store.transact([], [Put(LAYOUT.acl("0" * 16), b"{")])
        await asyncio.sleep(1)
        assert isinstance(stream.end_reason(), Unavailable)
        for _ in range(3):
            with pytest.raises(Unavailable, match="an ACL can't be read"):
                call().check("topic", "orders")
        await store.transact([], [Delete(LAYOUT.acl("0" * 16))])
        await asyncio.sleep(1)
        call().check("topic", "orders")
        following.cancel()

    run(main())


def test_a_right_that_was_given_and_taken_back_before_a_proof_does_not_come_back_with_a_late_watch() -> None:
    """The proof finds the same ACLs as before both changes. The watch brings the first of them only after the proof."""

    async def scenario(at: World) -> None:
        _, key = await at.key("audit")
        steps = at.store.steps[LAYOUT.acls] = asyncio.Semaphore(0)
        given = Acl(principal="audit", operation="read", resource="topic", name="orders")
        await at.records.add_acl(given)
        await at.records.remove_acl(given.acl_id)
        await asyncio.sleep(AGE_S)
        steps.release()
        for _ in range(20):
            await asyncio.sleep(AGE_S / 10)
            with pytest.raises(NotAuthorized):
                (await at.begin(key)).check("topic", "orders")
        steps.release()
        await at.records.add_acl(given)
        steps.release()
        await asyncio.sleep(0.1)
        (await at.begin(key)).check("topic", "orders")

    on_stage(scenario)
