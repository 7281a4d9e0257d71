"""Makes the next version of a manifest for compaction, merges, retention, DeleteRecords and the collector. Pure.

    with_compacted    │ [ file ][ file ]│[ runs … ]     ─▶  [ file ][ file ][ new ]│[ runs … ]      compacted_to rises
    with_replaced     │ [ old ][ old ][ file ]│         ─▶  [ new        ][ file ]│                old files are retired
    with_log_start    │ [ file ][ file ]│               ─▶         ▼[ file ]│                     whole files below are retired
    with_collected    │ retired, superseded             ─▶  without the deleted ones

Invariants of two consecutive versions: the number rises by one; neither `log_start_offset` nor `compacted_to` falls; a file that is
not named any more is retired; the earlier version is superseded, with the name of its writer. A contradiction is a bug of the
caller, and raises ValueError before anything is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from metadata.model import Offset
from segments.history.manifest import (
    Cause,
    EpochStart,
    HistoryFile,
    KeyPass,
    Manifest,
    RememberedProducer,
    Retired,
    Superseded,
    contradiction,
)


def with_compacted(
    manifest: Manifest,
    *,
    files: Sequence[HistoryFile],
    compacted_to: Offset,
    epochs: Iterable[EpochStart],
    producers: Sequence[RememberedProducer],
    writer: str,
    now_ms: int,
) -> Manifest:
    """Returns the next manifest, with the records of [manifest.compacted_to, compacted_to) in `files`.

    Records below the log start are in no file. `epochs` are those of the compacted runs, perhaps preceded by the last epoch
    of `manifest`. `producers` are all producers that are remembered at `compacted_to`, including earlier ones.
    """
    if compacted_to <= manifest.compacted_to:
        raise ValueError(f"compacted to {compacted_to}, but {manifest.compacted_to} was reached already")
    if any(file.base_offset < manifest.compacted_to for file in files):
        raise ValueError(f"a file begins below {manifest.compacted_to}, where others hold the records")
    known = manifest.epochs[-1].leader_epoch if manifest.epochs else -1
    return _next(
        manifest,
        cause="compaction",
        writer=writer,
        now_ms=now_ms,
        files=(*manifest.files, *files),
        compacted_to=compacted_to,
        epochs=(*manifest.epochs, *(begun for begun in epochs if begun.leader_epoch > known)),
        producers=tuple(producers),
    )


def with_replaced(
    manifest: Manifest,
    *,
    old: Collection[str],
    new: Sequence[HistoryFile],
    cause: Cause,
    writer: str,
    now_ms: int,
    passes: Sequence[KeyPass] | None = None,
) -> Manifest:
    """Returns the next manifest, with `new` files in place of the adjacent files named `old`, whose remaining records they hold.

    `passes` are all remembered passes of key compaction, if one ends with this version.
    """
    at = [at for at, file in enumerate(manifest.files) if file.name in old]
    if len(at) != len(old) or not at or at != list(range(at[0], at[-1] + 1)):
        raise ValueError("the files to replace are not all there, or do not stand side by side")
    first, last = manifest.files[at[0]], manifest.files[at[-1]]
    if any(file.base_offset < first.base_offset or file.last_offset > last.last_offset for file in new):
        raise ValueError(f"a new file holds offsets that are not between {first.base_offset} and {last.last_offset}")
    files = (*manifest.files[: at[0]], *new, *manifest.files[at[-1] + 1 :])
    over = {} if passes is None else {"key_passes": tuple(passes)}
    return _next(manifest, cause=cause, writer=writer, now_ms=now_ms, files=files, **over)


def with_log_start(manifest: Manifest, offset: Offset, *, cause: Cause = "delete-records", writer: str, now_ms: int) -> Manifest:
    """Returns the next manifest, without records below `offset`, which may be between `compacted_to` and the high watermark."""
    if offset <= manifest.log_start_offset:
        raise ValueError(f"the log starts at {manifest.log_start_offset} already, so it can't be raised to {offset}")
    kept = tuple(file for file in manifest.files if file.last_offset >= offset)
    return _next(manifest, cause=cause, writer=writer, now_ms=now_ms, log_start_offset=offset, files=kept)


def with_collected(
    manifest: Manifest, *, files: Collection[str] = (), versions: Collection[int] = (), writer: str, now_ms: int
) -> Manifest:
    """Returns the next manifest, without the deleted `files` and `versions`.

    Without both, only the version rises. This fences a planner that works on the earlier version: no manifest can name its files.
    """
    return _next(
        manifest,
        cause="collection",
        writer=writer,
        now_ms=now_ms,
        retired=tuple(one for one in manifest.retired if one.name not in files),
        superseded=tuple(one for one in manifest.superseded if one.version not in versions),
    )


def with_key_passes(manifest: Manifest, *, passes: Sequence[KeyPass], writer: str, now_ms: int) -> Manifest:
    """Returns the next manifest after a pass of key compaction has replaced every file that it had to change.

    `passes` are all remembered passes.
    """
    before = manifest.key_passes[-1].end_offset if manifest.key_passes else -1
    if not passes or passes[-1].end_offset < before:
        raise ValueError(f"keys were compacted to {before} already")
    return _next(manifest, cause="key-compaction", writer=writer, now_ms=now_ms, key_passes=tuple(passes))


def _next(manifest: Manifest, *, cause: Cause, writer: str, now_ms: int, **changes: Any) -> Manifest:
    version = msgspec.structs.replace(manifest, cause=cause, writer=writer, written_at_ms=now_ms, **changes)
    superseded = version.superseded
    if manifest.version:
        superseded = (*superseded, Superseded(manifest.version, now_ms, manifest.writer))
    named = {file.name for file in version.files}
    gone = (Retired(file.name, now_ms) for file in manifest.files if file.name not in named)
    version = msgspec.structs.replace(
        version,
        version=manifest.version + 1,
        retired=(*version.retired, *gone),
        superseded=superseded,
        epochs=_still_asked_for(version.epochs, version.log_start_offset),
    )
    if wrong := contradiction(version):
        raise ValueError(f"the next version of {manifest.topic_partition} would contradict itself: {wrong}")
    return version


def _still_asked_for(epochs: tuple[EpochStart, ...], log_start_offset: Offset) -> tuple[EpochStart, ...]:
    """Leaves out those whose records are all gone. The last one stays, since it begins where the one before ended."""
    ended = sum(1 for _, following in pairwise(epochs) if following.start_offset <= log_start_offset)
    return epochs[ended:]
