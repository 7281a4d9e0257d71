"""Keys, ACLs and quotas in the store, and the cache that follows them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from metadata.access.acl import Acl, encode_acl
from metadata.access.api_key import FORGOTTEN_AFTER_MS, parse_key
from metadata.access.cache import AccessCache
from metadata.access.quota import Quota
from metadata.access.registry import AccessRegistry
from metadata.cluster.identity import read_peer_secret
from metadata.errors import InvalidArgument, NotFound, Unavailable
from metadata.store.interface import Delete, Put
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore

LAYOUT = KeyLayout()
READ = Acl(principal="billing", operation="read", resource="topic", name="orders")


class World:
    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.now_ms = 1_767_225_600_000
        self.records = AccessRegistry(store, LAYOUT, now_ms=lambda: self.now_ms)
        self.cache = AccessCache(store, LAYOUT)


def serve(tmp_path: Path, scenario: Callable[[World], Awaitable[None]], *, follow: bool = True) -> None:
    async def whole() -> None:
        store = SqliteStore(tmp_path / "metadata.sqlite")
        world = World(store)
        following = asyncio.ensure_future(world.cache.run() if follow else asyncio.sleep(0))
        try:
            async with asyncio.timeout(60):
                if follow:
                    await world.cache.read(30)
                await scenario(world)
        finally:
            following.cancel()
            await asyncio.wait([following])
            await store.close()

    asyncio.run(whole())


def test_a_key_lives_from_its_making_to_its_revocation(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        made = await world.records.create_key("billing", description="nightly", created_by="admin")
        shown = parse_key(made.text.reveal())
        assert shown is not None
        assert shown.key_id == made.key.key_id
        assert await world.cache.wait_for("key", made.revision, 30)
        assert world.cache.key(made.key.key_id) == made.key
        assert (await world.records.list_keys()).records == (made.key,)
        trial, _ = await world.records.revoke_key(made.key.key_id, validate_only=True)
        assert trial.state(world.now_ms) == "revoked"
        assert (await world.records.list_keys()).records == (made.key,)
        revoked, revision = await world.records.revoke_key(made.key.key_id)
        assert await world.cache.wait_for("key", revision, 30)
        assert world.cache.key(made.key.key_id) == revoked
        world.now_ms += 5
        assert (await world.records.revoke_key(made.key.key_id))[0] == revoked
        with pytest.raises(NotFound):
            await world.records.revoke_key("0" * 16)
        with pytest.raises(InvalidArgument):
            await world.records.revoke_key("../acls")

    serve(tmp_path, scenario)


def test_old_keys_go_when_a_new_one_is_made(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        old = await world.records.create_key("billing", expires_at_ms=world.now_ms + 1)
        await world.records.create_key("billing", validate_only=True)
        world.now_ms += 1 + FORGOTTEN_AFTER_MS
        new = await world.records.create_key("billing")
        assert (await world.records.list_keys()).records == (new.key,)
        assert old.key != new.key

    serve(tmp_path, scenario)


def test_a_binding_is_there_once_and_its_removal_is_heard(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        added, revision = await world.records.add_acl(READ)
        assert (await world.records.add_acl(READ)) == (added, revision)
        assert await world.cache.wait_for("acl", revision, 30)
        assert world.cache.rights("billing").allow("read", "topic", "orders")
        assert not world.cache.rights("others").allow("read", "topic", "orders")
        version = world.cache.version
        _, revision = await world.records.remove_acl(added.acl_id)
        assert await world.cache.wait_for("acl", revision, 30)
        assert not world.cache.rights("billing").allow("read", "topic", "orders")
        assert world.cache.version > version
        with pytest.raises(NotFound):
            await world.records.remove_acl(added.acl_id)
        with pytest.raises(NotFound):
            await world.records.remove_acl("../keys/x")

    serve(tmp_path, scenario)


def test_an_unreadable_binding_makes_all_rights_unavailable_until_it_is_deleted(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.records.add_acl(READ)
        damaged = await world.store.transact([], [Put(LAYOUT.acl("0" * 16), b"{")])
        assert await world.cache.wait_for("acl", damaged.revision, 30)
        with pytest.raises(Unavailable):
            world.cache.rights("billing")
        page = await world.records.list_acls()
        assert [acl.principal for acl in page.records] == ["billing"]
        assert len(page.errors) == 1
        mended = await world.store.transact([], [Delete(LAYOUT.acl("0" * 16))])
        assert await world.cache.wait_for("acl", mended.revision, 30)
        assert world.cache.rights("billing").allow("read", "topic", "orders")

    serve(tmp_path, scenario)


def test_bindings_that_only_a_newer_version_knows_leave_the_other_rights_as_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World) -> None:
        newer = [
            Acl(principal="billing", operation="fly", resource="topic", name="invoices"),
            Acl(principal="others", operation="fly", resource="topic", name="orders", effect="deny"),
        ]
        for acl in (READ, msgspec.structs.replace(READ, principal="others")):
            await world.records.add_acl(acl)
        put = await world.store.transact([], [Put(LAYOUT.acl(acl.acl_id), encode_acl(acl)) for acl in newer])
        assert await world.cache.wait_for("acl", put.revision, 30)
        assert world.cache.rights("billing").allow("read", "topic", "orders")
        assert not world.cache.rights("billing").allow("describe", "topic", "invoices")
        assert not world.cache.rights("others").allow("read", "topic", "orders")
        assert f"{newer[1].acl_id} operation=fly: it denies every operation here" in caplog.text
        page = await world.records.list_acls()
        assert (len(page.records), page.errors) == (4, ())
        for acl in newer:
            assert (await world.records.remove_acl(acl.acl_id))[0] == acl

    serve(tmp_path, scenario)


def test_changes_of_one_quota_at_the_same_time_are_all_made(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        other = AccessRegistry(world.store, LAYOUT)
        limits = {"bytes_in_per_second": 3, "bytes_out_per_second": 4, "requests_per_second": 5}
        await asyncio.gather(
            *(
                records.alter_quota("billing", lambda held, name=name: msgspec.structs.replace(held, **{name: limits[name]}))  # type: ignore[misc]
                for records, name in zip((world.records, other, world.records), limits, strict=True)
            )
        )
        assert (await other.list_quotas()).records == (Quota(principal="billing", **limits),)

    serve(tmp_path, scenario, follow=False)


def test_a_quota_that_is_altered_to_no_limits_is_removed(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        def unlimited(held: Quota) -> Quota:
            return Quota(principal=held.principal)

        assert (await world.records.alter_quota("billing", unlimited))[1] == 0
        await world.records.set_quota(Quota(principal="billing", requests_per_second=7))
        await world.records.alter_quota("billing", unlimited, validate_only=True)
        assert len((await world.records.list_quotas()).records) == 1
        await world.records.alter_quota("billing", unlimited)
        assert (await world.records.list_quotas()).records == ()
        with pytest.raises(InvalidArgument):
            await world.records.alter_quota("billing", lambda held: Quota(principal=held.principal, requests_per_second=-1))

    serve(tmp_path, scenario, follow=False)


def test_a_principal_without_a_quota_has_the_quota_of_all_principals(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        everybody, _ = await world.records.set_quota(Quota(principal="*", requests_per_second=5))
        own, revision = await world.records.set_quota(Quota(principal="a/b c", requests_per_second=7))
        assert await world.cache.wait_for("quota", revision, 30)
        assert world.cache.quota("a/b c") == own
        assert world.cache.quota("others") == everybody
        _, revision = await world.records.remove_quota("a/b c")
        assert await world.cache.wait_for("quota", revision, 30)
        assert world.cache.quota("a/b c") == everybody

    serve(tmp_path, scenario)


def test_lists_come_in_pages(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        made = {(await world.records.create_key("billing")).key.key_id for _ in range(5)}
        found: list[str] = []
        token = ""
        while True:
            page = await world.records.list_keys(page_size=2, page_token=token)
            found += [key.key_id for key in page.records]
            if not (token := page.next_page_token):
                break
        assert found == sorted(made)

    serve(tmp_path, scenario)


def test_the_access_cache_is_unavailable_before_its_first_complete_read(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(Unavailable):
            world.cache.key("0" * 16)
        with pytest.raises(Unavailable):
            world.cache.rights("billing")

    serve(tmp_path, scenario, follow=False)


def test_all_brokers_of_a_cluster_read_the_same_secret(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        drawn = iter([b"\x01" * 32, b"\x02" * 32])
        first = await read_peer_secret(world.store, LAYOUT, lambda _: next(drawn))
        again = await read_peer_secret(world.store, LAYOUT, lambda _: next(drawn))
        assert first == again
        assert first.reveal() == "01" * 32

    serve(tmp_path, scenario, follow=False)
