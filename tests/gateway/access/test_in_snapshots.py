"""Keys, ACLs and quotas come back with the metadata from the bucket; the brokers' secret never lies there."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.controller.metadata_snapshots import take_snapshot
from metadata.access.acl import Acl
from metadata.access.quota import Quota
from metadata.access.registry import AccessRegistry
from metadata.access.scram import SHA_256, ScramUser, credential_of_password
from metadata.backup.snapshot import parse_snapshot
from metadata.cluster.identity import read_peer_secret, read_scram_secret
from metadata.store.interface import Put
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from segments.bucket.layout import snapshot_key
from segments.object_store.memory import MemoryObjectStore
from tidelog.bucket.restore_plan import Evidence, plan_restore

LAYOUT = KeyLayout()


def test_a_restore_brings_back_who_may_do_what_and_no_secret_of_the_brokers(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, bucket = SqliteStore(tmp_path / "metadata.sqlite"), MemoryObjectStore()
        await store.transact([], [Put(LAYOUT.cluster_id, b"the-cluster")])
        secret = await read_peer_secret(store, LAYOUT, lambda count: b"\x5e" * count)
        records = AccessRegistry(store, LAYOUT)
        made = await records.create_key("billing")
        acl, _ = await records.add_acl(Acl(principal="billing", operation="read", resource="topic", name="orders"))
        await records.set_quota(Quota(principal="a/b", requests_per_second=7))
        salted = credential_of_password(SHA_256, b"wonder", b"\x5a" * 16, 4096)
        await records.alter_scram_user("alice", lambda held: ScramUser(user=held.user, credentials=(salted,)))
        scram_secret = await read_scram_secret(store, LAYOUT, lambda count: b"\x6e" * count)
        revision = await take_snapshot(bucket, store, LAYOUT, now_ms=lambda: 0)
        assert revision is not None
        key = snapshot_key(revision)
        found = parse_snapshot(await bucket.get(key), key=key)
        assert not any(entry.key == "peer_secret" or secret.reveal().encode() in entry.value for entry in found.entries)
        assert not any(made.text.reveal().split("_")[2].encode() in entry.value for entry in found.entries)
        hidden = (salted.stored_key.encode(), scram_secret.reveal().encode())
        assert not any(text in entry.value for text in hidden for entry in found.entries)
        plan = plan_restore(Evidence("the-cluster", snapshot=found), LAYOUT, {})
        restored = {put.key for put in plan.puts}
        assert {LAYOUT.api_key(made.key.key_id), LAYOUT.acl(acl.acl_id), LAYOUT.quota("a/b")} <= restored
        await store.close()

    asyncio.run(scenario())
