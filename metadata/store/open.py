"""Opens the metadata store that the settings name: etcd where it is set, else the embedded one.

Invariant: the yielded store has answered once, so that a wrong address, password or certificate fails the start.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from metadata.store.etcd.settings import EtcdSettings
from metadata.store.interface import MetadataStore
from metadata.store.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from metadata.store.etcd.store import EtcdStore

_MEMBERS_ANY = 1 << 16


@asynccontextmanager
async def open_metadata(etcd: EtcdSettings, sqlite_path: Path, *, prefix: str) -> AsyncIterator[MetadataStore]:
    """Yields the store, with its housekeeping running beside it, and closes it afterwards.

    `prefix` is the cluster's, which must be readable. Entering raises Unavailable, Denied, Rejected and Corrupt. An error of the
    housekeeping, which is a bug, ends the body.
    """
    store = await _etcd(etcd, prefix) if etcd.addresses else SqliteStore(sqlite_path)
    try:
        async with asyncio.TaskGroup() as tasks:
            housekeeping = tasks.create_task(store.run(), name="metadata")
            try:
                yield store
            finally:
                housekeeping.cancel()
    except BaseExceptionGroup as errors:
        first = errors.exceptions[0]  # as the body raised it, without the group of the housekeeping task
        raise first from first.__cause__
    finally:
        await store.close()


async def _etcd(settings: EtcdSettings, prefix: str) -> EtcdStore:
    from metadata.store.etcd.store import EtcdStore  # here, so that users of SQLite need not load the client

    store = EtcdStore(settings, first_member=secrets.randbelow(_MEMBERS_ANY))
    try:
        await store.check(prefix)
    except BaseException:
        await store.close()
        raise
    return store
