"""`tidelog doctor` distinguishes a store that does not keep create-only PUTs from one that does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from segments.object_store.interface import Buffer
from segments.object_store.memory import MemoryObjectStore
from tidelog.cli.doctor.checks import check_create_only


class Overwriting(MemoryObjectStore):
    """Ignores the condition, as stores do that never heard of it."""

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        await self.delete(key)
        await super().create(key, body)


def test_a_store_that_keeps_create_only_puts_is_well() -> None:
    assert asyncio.run(check_create_only(MemoryObjectStore())).status == "ok"


def test_a_store_that_lets_a_second_create_win_fails_with_the_cause_and_a_remedy() -> None:
    diagnosis = asyncio.run(check_create_only(Overwriting()))
    assert diagnosis.status == "failed"
    assert "acknowledged records would be lost" in diagnosis.detail
    assert "If-None-Match" in diagnosis.remedy
