"""Proves at the start that the bucket honours create-only PUTs, on which everything that Tidelog promises rests.

    create(key, one)  → made
    create(key, two)  → AlreadyExists      where this is made too, two brokers would overwrite each other's segments
    get(key)          → one
    delete(key)

It is also the first time that the bucket is asked anything, so it is here that a missing bucket, wrong credentials, a missing
permission or a full disk show themselves, each as the store's own error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from metadata.errors import AlreadyExists, NotFound, Rejected, TidelogError, Unavailable
from metadata.retry import RetryPauses, retry_unavailable
from segments.object_store.interface import ObjectStore

_Answer = TypeVar("_Answer")
_TRIES = 5
_PAUSE_S = 0.2
_WRONG_STORE = "Use a store that honours `If-None-Match: *` on PUT: AWS S3, a current MinIO, Ceph or R2, or a local directory."


async def check_conditional_put(store: ObjectStore, scratch_key: str, *, timeout_s: float = 30.0) -> None:
    """Returns when the proof holds, and has deleted the scratch key.

    `scratch_key` must be new: see `bucket_layout.proof_key`. Raises Rejected for a store that lets both creates win or reads
    back other bytes; else what the store raises: Denied for credentials, permissions and a missing bucket, Unavailable for one
    that can't be reached or does not answer in `timeout_s`.
    """
    try:
        async with asyncio.timeout(timeout_s):
            await _prove(store, scratch_key)
    except TimeoutError:
        raise Unavailable(f"{store.url} did not answer in {timeout_s:g} s", hint="Look at its address and its load.") from None


async def _prove(store: ObjectStore, key: str) -> None:
    one, two = b"the first create of this key", b"the second create of this key, which must lose"
    await _is_made(store, key, one)  # where it exists already, the answer of the first try was lost
    try:
        second_was_made = await _is_made(store, key, two)
        stored = await _tried(lambda: store.get(key))
    except TidelogError as error:
        with suppress(TidelogError):
            await store.delete(key)
        if isinstance(error, NotFound):
            raise Rejected(f"{store.url} does not show an object that was created a moment ago", hint=_WRONG_STORE) from error
        raise
    await _tried(lambda: store.delete(key))
    if second_was_made or stored != one:
        raise Rejected(f"{store.url} lets a second create of a key win: acknowledged records would be lost", hint=_WRONG_STORE)


async def _is_made(store: ObjectStore, key: str, body: bytes) -> bool:
    try:
        await _tried(lambda: store.create(key, [body]))
    except AlreadyExists:
        return False
    return True


async def _tried(call: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """Returns what the first attempt that is answered returns. Each call of the proof may be repeated without harm."""
    return await retry_unavailable(call, attempts_max=_TRIES, pauses=RetryPauses(_PAUSE_S))
