from __future__ import annotations

from pathlib import Path

import pytest

from compaction.conversion.scratch import ScratchFile, WantedRuns
from metadata.errors import Corrupt
from metadata.model import Offset, SegmentSeq, SessionId
from tests.kit.segments.batches import ORDERS, PAYMENTS, batch_of, segment_of, stamped_run


def body_of(seq: int, base: int) -> bytes:
    runs = [(PAYMENTS, stamped_run(base, batch_of(b"p"))), (ORDERS, stamped_run(base, batch_of(f"{base}".encode())))]
    return b"".join(bytes(part) for part in segment_of(7, seq, runs).body)


def test_the_runs_that_are_wanted_come_back_in_offset_order_whatever_the_order_of_their_segments(tmp_path: Path) -> None:
    scratch = ScratchFile(str(tmp_path), {ORDERS: WantedRuns(Offset(1), Offset(4))})
    for seq in (3, 0, 4, 2, 1):
        scratch.take_in(body_of(seq, seq), 0, SessionId(7), SegmentSeq(seq))
    runs = scratch.runs(ORDERS)
    assert [(run.base_offset, run.session, run.seq) for run in runs] == [(1, 7, 1), (2, 7, 2), (3, 7, 3)]
    for run in runs:
        assert scratch.read(run) == body_of(run.seq, run.seq)[run.start : run.start + run.size_bytes]
    assert scratch.runs(PAYMENTS) == []
    assert scratch.size_bytes == sum(run.size_bytes for run in runs), "only what is wanted"
    scratch.close()


def test_the_end_of_a_segment_is_enough_where_what_is_wanted_lies_there(tmp_path: Path) -> None:
    scratch = ScratchFile(str(tmp_path), {ORDERS: WantedRuns(Offset(0), Offset(1))})
    whole = body_of(0, 0)
    start = whole.index(b"p")
    scratch.take_in(whole[start:], start, SessionId(7), SegmentSeq(0))
    (run,) = scratch.runs(ORDERS)
    assert scratch.read(run) == whole[run.start : run.start + run.size_bytes]
    scratch.close()


def test_of_a_segment_with_a_damaged_footer_nothing_is_kept(tmp_path: Path) -> None:
    scratch = ScratchFile(str(tmp_path), {ORDERS: WantedRuns(Offset(0), Offset(1))})
    body = bytearray(body_of(0, 0))
    body[-30] ^= 1
    with pytest.raises(Corrupt):
        scratch.take_in(bytes(body), 0, SessionId(7), SegmentSeq(0))
    assert scratch.runs(ORDERS) == []
    scratch.close()


def test_a_thread_that_is_late_finds_it_closed(tmp_path: Path) -> None:
    scratch = ScratchFile(str(tmp_path), {ORDERS: WantedRuns(Offset(0), Offset(2))})
    scratch.take_in(body_of(0, 0), 0, SessionId(7), SegmentSeq(0))
    (run,) = scratch.runs(ORDERS)
    scratch.close()
    with pytest.raises(ValueError, match="closed"):
        scratch.read(run)
    with pytest.raises(ValueError, match="closed"):
        scratch.take_in(body_of(1, 1), 0, SessionId(7), SegmentSeq(1))
