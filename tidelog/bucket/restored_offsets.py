"""Sets committed offsets back to the ends of the restored partitions. Pure.

    snapshot   orders/0: 120                                       a consumer would be out of range, or miss
    bucket     orders/0: [ … 80 )    ─▶ committed: 80              the records that get offsets 80 to 119 next

Offsets come from a snapshot of the metadata. A replica that lags, or a bucket with lost segments, may end before them. Offsets at
or below the end stay as they were committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from compaction.audit.findings import RestoreFinding
from metadata.errors import Corrupt
from metadata.groups.offsets import decode_offset, encode_offset
from metadata.model import Revision, TopicPartition
from metadata.store.interface import KeyValue, Put
from metadata.store.keys import KeyLayout

# Partitions that a finding names.
NAMED_MAX: Final = 3


def set_back(
    puts: Sequence[Put], ends: Mapping[TopicPartition, int], layout: KeyLayout, findings: list[RestoreFinding]
) -> tuple[list[Put], int]:
    """Returns the puts, with no committed offset beyond the end of its partition, and how many offsets were set back.

    `ends` has the end offset of each partition whose end is known. The leader epoch of such an offset becomes unknown, since the
    last record that was read is gone.
    """
    kept: list[Put] = []
    groups: dict[str, list[str]] = {}
    for put in puts:
        if put.key.startswith(layout.committed_offsets):
            try:
                group, partition = layout.parse_offset(put.key)
                committed = decode_offset(KeyValue(put.key, put.value, Revision(0), Revision(0), version=1))
            except Corrupt:  # the group reports it
                kept.append(put)
                continue
            end = ends.get(partition)
            if end is not None and committed.offset > end:
                groups.setdefault(group, []).append(f"{partition} from {committed.offset} to {end}")
                put = Put(put.key, encode_offset(msgspec.structs.replace(committed, offset=end, leader_epoch=-1)))
        kept.append(put)
    for group, moved in sorted(groups.items()):
        more = f", and {len(moved) - NAMED_MAX} more" if len(moved) > NAMED_MAX else ""
        what = (
            f"records that it had read are not on the bucket; committed offsets beyond the end are set back to it: "
            f"{', '.join(moved[:NAMED_MAX])}{more}"
        )
        findings.append(RestoreFinding("damage", f"group {group}", what))
    return kept, sum(map(len, groups.values()))
