"""Checks the bucket and the metadata store as `tidelog doctor` does, for readers of the cluster's health.

    bucket      it can be listed and read                          segments/bucket/listing_check.py
    etcd HOST   each member: version, leader, alarms, its time     metadata/store/etcd/member_check.py
    metadata    SQLite answers, and how fast

Invariants: a check only reads. However many readers ask, the stores are checked once in FRESH_S; a store that does not answer is
reported after TIMEOUT_S.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from metadata.diagnosis import Diagnosis, failed
from metadata.errors import TidelogError
from metadata.store.etcd.settings import EtcdSettings
from metadata.store.interface import MetadataStore
from metadata.store.keys import KeyLayout
from segments.bucket.listing_check import check_listing
from segments.object_store.interface import ObjectStore

FRESH_S: Final = 5.0
TIMEOUT_S: Final = 5.0


class CheckedStores(NamedTuple):
    """Holds the diagnoses of one check."""

    checked_at_ms: int
    diagnoses: Sequence[Diagnosis]


class StoreChecks:
    """Checks the stores of a broker."""

    def __init__(
        self,
        bucket: ObjectStore,
        metadata: MetadataStore,
        layout: KeyLayout,
        etcd: EtcdSettings | None,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        """`etcd` is None where the metadata are in SQLite."""
        self._bucket = bucket
        self._metadata = metadata
        self._layout = layout
        self._etcd = etcd
        self._now_ms = now_ms
        self._checking = asyncio.Lock()
        self._checked: CheckedStores | None = None
        self._fresh_until_s = float("-inf")

    async def check(self) -> CheckedStores:
        """Returns the last diagnoses while they are fresh, else new ones. Raises nothing."""
        clock = asyncio.get_running_loop().time
        async with self._checking:  # others wait for this check; if it is cancelled, the next of them checks
            if self._checked is None or clock() >= self._fresh_until_s:
                bucket, metadata = await asyncio.gather(self._check_bucket(), self._check_metadata())
                self._checked = CheckedStores(self._now_ms(), (bucket, *metadata))
                self._fresh_until_s = clock() + FRESH_S
            return self._checked

    async def _check_bucket(self) -> Diagnosis:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await check_listing(self._bucket)
        except TimeoutError:
            return Diagnosis("bucket", "failed", f"it did not answer within {TIMEOUT_S:g} s", "Look at the network to the bucket.")

    async def _check_metadata(self) -> list[Diagnosis]:
        name = "etcd" if self._etcd is not None else "metadata"
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if self._etcd is None:
                    return [await self._check_sqlite(name)]
                from metadata.store.etcd.member_check import check_members

                return await check_members(self._etcd)
        except TimeoutError:
            remedy = "Bring back a majority of etcd's members." if self._etcd is not None else "Look at the disk of data_dir."
            return [Diagnosis(name, "failed", f"it did not answer within {TIMEOUT_S:g} s", remedy)]

    async def _check_sqlite(self, name: str) -> Diagnosis:
        began_s = time.perf_counter()
        try:
            await self._metadata.get(self._layout.cluster_id)
        except TidelogError as error:
            return failed(name, error)
        return Diagnosis(name, "ok", f"SQLite answers in {1000 * (time.perf_counter() - began_s):.1f} ms")
