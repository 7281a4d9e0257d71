"""Decides what may be deleted, and when. Pure. Below topics/:

    retired files, superseded versions      the manifest names them; when their grace is over
    an orphan: a file that no manifest names and that was to be named first by version v
        newest manifest >= v                at once: no writer can name it any more
        newest manifest == v - 1            its writer may still run. After the grace an unchanged version v is created,
                                            so that a writer which still wants to name the file loses the create; then it goes
        newest manifest <  v - 1            left alone: manifests are missing, and an operator should look
        whatever v is, records behind both `compacted_to` and the log start
                                            left alone until a manifest has these offsets: either they are in segments and are
                                            compacted soon, or the manifest is missing that let the segments go, and this file is
                                            all that is left of them
    a manifest below the newest that it does not list as superseded      at once: a leftover
    everything of a topic that is marked as deleted, but the marker      after the grace; later objects, too

And below spark/: staged rows a week after their task wrote them, long after brokers have forgotten their producer. The records
of a batch (chosen, done) stay: so a late task can't write it again.

Invariant: no object goes that a manifest names, or that a writer can still have named by the next one; nor a file with records that
may be nowhere else.
"""

from __future__ import annotations

from typing import Final, Literal

from segments.bucket.layout import HistoryKey, StagedKey
from segments.history.manifest import Manifest

STAGED_ROWS_KEPT_MS: Final = 7 * 24 * 3_600_000
# Superseded versions past their grace that are worth a new version: that one supersedes another.
SUPERSEDED_MIN: Final = 8

Fate = Literal["named", "delete", "wait", "odd", "ahead"]


def due_for_collection(manifest: Manifest, *, grace_ms: float, now_ms: int) -> tuple[list[str], list[int]]:
    """Returns the names of retired files and the numbers of superseded versions whose grace is over."""
    files = [one.name for one in manifest.retired if one.at_ms + grace_ms <= now_ms]
    versions = [one.version for one in manifest.superseded if one.at_ms + grace_ms <= now_ms]
    return files, versions


def collection_due(manifest: Manifest, *, grace_ms: float, now_ms: int) -> bool:
    files, versions = due_for_collection(manifest, grace_ms=grace_ms, now_ms=now_ms)
    return bool(files) or len(versions) >= SUPERSEDED_MIN


def next_collection_ms(manifest: Manifest, *, grace_ms: float) -> float | None:
    """Returns when `collection_due` becomes true for this manifest; None for never."""
    ends_ms = [min(one.at_ms for one in manifest.retired) + grace_ms] if manifest.retired else []
    if len(manifest.superseded) >= SUPERSEDED_MIN:
        ends_ms.append(sorted(one.at_ms for one in manifest.superseded)[SUPERSEDED_MIN - 1] + grace_ms)
    return min(ends_ms, default=None)


def fate_of_file(found: HistoryKey, newest: Manifest | None) -> Fate:
    """Decides about a listed file. `newest`: the newest manifest when it was read; the listing may be older or newer."""
    version = newest.version if newest is not None else 0
    if newest is not None and (
        any(file.name == found.file_name for file in newest.files) or any(one.name == found.file_name for one in newest.retired)
    ):
        return "named"
    if found.version > version + 1:
        return "odd"
    if found.last_offset >= (max(newest.compacted_to, newest.log_start_offset) if newest is not None else 0):
        return "ahead"
    return "delete" if found.version <= version else "wait"


def is_stale(staged: StagedKey, *, now_ms: int) -> bool:
    """Returns whether the rows are too old for any driver to send them."""
    return staged.created_ms is not None and staged.created_ms + STAGED_ROWS_KEPT_MS <= now_ms


def is_leftover_version(version: int, newest: Manifest) -> bool:
    """Returns whether this version of the manifest is superseded without being listed as such."""
    return version < newest.version and all(one.version != version for one in newest.superseded)
