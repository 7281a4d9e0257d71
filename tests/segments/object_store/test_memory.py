"""The memory store beyond the contract: it checks what tests rely on being checked."""

from __future__ import annotations

import asyncio

import pytest
from awscrt.checksums import crc32c

from metadata.errors import NotFound, Unavailable
from segments.object_store.memory import MemoryObjectStore


def test_a_checksum_that_is_not_that_of_the_body_is_refused_as_s3_refuses_it() -> None:
    async def scenario() -> None:
        store = MemoryObjectStore()
        with pytest.raises(Unavailable, match="CRC-32C"):
            await store.create("a", [b"body"], crc32c=crc32c(b"another body"))
        with pytest.raises(NotFound):
            await store.get("a")

    asyncio.run(scenario())


def test_an_object_does_not_change_with_the_buffer_that_it_was_made_of() -> None:
    async def scenario() -> None:
        store, buffer = MemoryObjectStore(), bytearray(b"as created")
        await store.create("a", [buffer])
        buffer[:] = b"overwritten"[:10]
        assert await store.get("a") == b"as created"

    asyncio.run(scenario())
