"""Finds the Parquet files of restored partitions that are newer than their manifests, as brokers do at a takeover.

    sessions sealed and read ─▶ plan ─▶ LIST the files ─▶ newer than manifest and segments? ─▶ GET the manifest again ─▶ a finding

On a copy of a bucket, or on one that was tampered with, manifests may be missing whose files are there. Brokers refuse such a
partition (segments/recovery/missing_manifests.py). A compactor may be at work meanwhile, so a manifest that seems older than a
file is read once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from compaction.audit.findings import RestoreFinding
from metadata.errors import Corrupt
from metadata.model import TopicPartition
from segments.history.manifest import Manifest
from segments.history.manifest_store import newest_manifests
from segments.object_store.interface import ObjectStore
from segments.recovery.missing_manifests import NewestFiles, newest_files, older_than_files
from tidelog.bucket.restore_evidence import patiently
from tidelog.bucket.restore_plan import RestorePlan

READS_MAX: Final = 16


async def unnamed_files(
    bucket: ObjectStore, plan: RestorePlan, manifests: Mapping[TopicPartition, Manifest]
) -> list[RestoreFinding]:
    """Returns a finding for each partition of the plan whose newest manifest is older than its files. Raises Unavailable, Denied.

    `manifests`: the newest ones that the plan was made from.
    """
    topics = {found.topic.id: found.topic.name for found in plan.topics}
    names = {partition: topics[partition.topic_id] for partition in plan.ends}
    files = await patiently(partial(newest_files, bucket, names, reads_max=READS_MAX))
    suspects = {where: names[where] for where in files if _older(where, names, files, plan, manifests.get(where)) is not None}
    if not suspects:
        return []
    again = await patiently(partial(newest_manifests, bucket, suspects, reads_max=READS_MAX))
    findings = []
    for where, manifest in sorted(again.items()):
        if isinstance(manifest, Corrupt):
            continue
        error = _older(where, names, files, plan, manifest)
        if error is not None:
            what = f"{error.message}; brokers will not serve the partition. {error.hint}"
            findings.append(RestoreFinding("damage", str(error.details["key"]), what))
    return findings


def _older(
    where: TopicPartition,
    names: Mapping[TopicPartition, str],
    files: Mapping[TopicPartition, NewestFiles],
    plan: RestorePlan,
    manifest: Manifest | None,
) -> Corrupt | None:
    version, end_offset = 0, plan.ends[where]
    if manifest is not None:
        version, end_offset = manifest.version, max(end_offset, manifest.compacted_to, manifest.log_start_offset)
    return older_than_files(names[where], where, files[where], version=version, end_offset=end_offset)
