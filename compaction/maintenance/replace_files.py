"""Replaces files of history by a rewritten one: merges and key compaction change the bucket in this way only.

    verify ─▶ newest manifest n ─▶ are the old ones all there, side by side? ─▶ PUT …-{n+1}-{nonce}.parquet ─▶ create manifest n+1
                   ▲                          no: given up, nothing is changed                                      │
                   └──── lost to another: no manifest can name the file any more, so it is deleted ◀────────────────┘

A file's name holds the version that is to name it first (segments/bucket/layout.py), so after a lost create it is uploaded again
under another name. Old files stay for the grace of their readers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from compaction.context import CompactionContext
from compaction.maintenance.record_dates import appended_by_ms
from compaction.upload import take_back_unnamed, upload
from metadata.model import TopicPartition
from segments.bucket.layout import history_file_name
from segments.history.manifest import Cause, HistoryFile, KeyPass, Manifest
from segments.history.manifest_edits import with_replaced
from segments.history.parquet_file import WrittenFile

ATTEMPTS_MAX: Final = 4

log = logging.getLogger(__name__)


class KeyPasses(NamedTuple):
    """Holds the passes that a manifest must have, and those that replace them."""

    before: tuple[KeyPass, ...]
    after: tuple[KeyPass, ...]


async def replace_files(
    context: CompactionContext,
    topic: str,
    partition: TopicPartition,
    old: Sequence[HistoryFile],
    written: WrittenFile | None,
    *,
    cause: Cause,
    key_passes: KeyPasses | None = None,
) -> Manifest | None:
    """Returns the manifest that names `written` in place of `old`; None where another writer has changed those meanwhile.

    `written` has been verified; None where no record of the old ones is left. `key_passes`: where this ends a pass.
    """
    for _ in range(ATTEMPTS_MAX):
        newest = await context.retry(lambda: context.manifests.read_one(topic, partition))
        if not stand_side_by_side(newest, old) or (key_passes is not None and newest.key_passes != key_passes.before):
            return None
        new = []
        if written is not None:
            base, last = written.file.base_offset, written.file.last_offset
            name = history_file_name(base, last, newest.version + 1, context.new_nonce(8))
            await upload(context, topic, partition, name, written.body)
            appended_ms = appended_by_ms(old, now_ms=context.clock.stamp_ms())
            new = [msgspec.structs.replace(written.file, name=name, appended_by_ms=appended_ms)]
        following = with_replaced(
            newest,
            old=[file.name for file in old],
            new=new,
            cause=cause,
            writer=context.new_nonce(16),
            now_ms=context.clock.stamp_ms(),
            passes=None if key_passes is None else key_passes.after,
        )
        if await context.manifests.commit(topic, following):
            return following
        for file in new:
            await take_back_unnamed(context, topic, partition, file.name, following.version)
    log.info("replacing files failed partition=%s topic=%s: too many concurrent changes; retrying later", partition, topic)
    return None


def stand_side_by_side(manifest: Manifest, files: Sequence[HistoryFile]) -> bool:
    """Returns whether the manifest still names the files, one after the other."""
    return tuple(files) in {
        manifest.files[at : at + len(files)] for at, file in enumerate(manifest.files) if file.name == files[0].name
    }
