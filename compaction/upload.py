"""Uploads a file of history before a manifest names it, and deletes it where none will.

    PUT …-{n+1}-{nonce}.parquet ─▶ create manifest n+1 ─┬─▶ named: from now on it is history
                                                        └─▶ lost: the newest one is read, and does not name it ─▶ DELETE

The CRC-32C of the whole file goes with it, and the store checks what it received: the file was read back before, and from now on
segments may be deleted for its sake.

Invariant: an upload is deleted only where no manifest can name it any more. Where that fails, the collector finds it.
"""

from __future__ import annotations

import asyncio
import contextlib

import pyarrow as pa
from awscrt.checksums import crc32c

from compaction.context import CompactionContext
from metadata.errors import AlreadyExists
from metadata.model import TopicPartition
from segments.bucket.layout import history_file_key


async def upload(context: CompactionContext, topic: str, partition: TopicPartition, name: str, body: pa.Buffer) -> None:
    """Uploads the file under `name`, which was drawn by chance for this upload alone."""
    key, content = history_file_key(topic, partition, name), memoryview(body)
    checksum = await asyncio.to_thread(crc32c, content)

    async def create() -> None:
        with contextlib.suppress(AlreadyExists):  # our own create, whose answer was lost: no other writer draws the same nonce
            await context.store.create(key, [content], crc32c=checksum)

    await context.retry(create)


async def discard(context: CompactionContext, topic: str, partition: TopicPartition, name: str) -> None:
    """Deletes an upload of the caller, which has not tried to create a manifest that names it."""
    await context.deletions.delete([history_file_key(topic, partition, name)])


async def take_back_unnamed(context: CompactionContext, topic: str, partition: TopicPartition, name: str, version: int) -> None:
    """Deletes an upload after the create of manifest `version`, which was to name it, failed or was lost to another.

    Only a manifest that is read now can prove that: it has that version or a later one, and does not name the file.
    """
    newest = await context.retry(lambda: context.manifests.read_one(topic, partition))
    named = {one.name for one in newest.files} | {one.name for one in newest.retired}
    if newest.version >= version and name not in named:
        await discard(context, topic, partition, name)
