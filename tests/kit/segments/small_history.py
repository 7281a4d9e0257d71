"""A history of three files with gaps, for tests that never look at the files that it names."""

from __future__ import annotations

import msgspec

from metadata.model import LeaderEpoch, Offset
from segments.history.index import HistoryIndex
from segments.history.manifest import EpochStart, HistoryFile, RowGroup, no_manifest
from tests.kit.segments.batches import ORDERS
from tests.kit.segments.manifests import file_of

# Base and last offset of the row groups of three files. 0, 1, 10, 11, 13 to 19, 26 and 32 to 39 were removed.
ROWS = [[(2, 4), (5, 9)], [(12, 12)], [(20, 25), (27, 30), (31, 31)]]


def history(rows: list[list[tuple[int, int]]] = ROWS, *, compacted_to: int = 40, wider: bool = False) -> HistoryIndex:
    """Each record's timestamp is its offset. `wider`: each file says that it goes one offset further than its records."""
    return HistoryIndex(
        msgspec.structs.replace(
            no_manifest(ORDERS),
            version=1,
            compacted_to=Offset(compacted_to),
            files=tuple(_file(groups, wider) for groups in rows),
            epochs=(EpochStart(LeaderEpoch(3), Offset(0)), EpochStart(LeaderEpoch(5), Offset(12))),
        ),
        "orders",
    )


def _file(groups: list[tuple[int, int]], wider: bool) -> HistoryFile:
    base, last = groups[0][0], groups[-1][1]
    return msgspec.structs.replace(
        file_of(base, last),
        last_offset=Offset(last + wider),
        max_timestamp=last,
        row_groups=tuple(
            RowGroup(Offset(first), Offset(end), 1, 4 + 100 * at, 104 + 100 * at, max_timestamp=end, crc32c=0)
            for at, (first, end) in enumerate(groups)
        ),
    )
