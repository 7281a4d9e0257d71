"""A run read back from the bucket: every batch that is as it was written is read, the others are reported by offsets and bytes."""

from __future__ import annotations

import pytest
from awscrt.checksums import crc32c
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import Corrupt
from metadata.model import LeaderEpoch, Offset, SegmentSeq, SessionId
from segments.read.cached_run import CachedRun, open_by_footer, open_run
from segments.wal.run_index import RunLocation
from segments.wal.segment_file import BatchEntry
from tests.kit.segments.batches import EPOCH, ORDERS, PAYMENTS, batch_of, records_in, segment_of, stamped_run

SESSION, SEQ = SessionId(7), SegmentSeq(0)
Record = tuple[int, bytes | None]


class Written:
    """A run of ORDERS from offset 100 on, as it lies in a segment, behind one of another partition."""

    def __init__(self, *batches: bytes) -> None:
        segment = segment_of(SESSION, SEQ, [(PAYMENTS, stamped_run(0, batch_of(b"other"))), (ORDERS, stamped_run(100, *batches))])
        found = segment.footer.runs[1]
        self.location = RunLocation(
            found.base_offset, found.last_offset, SESSION, SEQ, found.start, found.end, found.leader_epoch, found.max_timestamp
        )
        self.entries = segment.footer.batches(found)
        self.body = b"".join(segment.body)[found.start : found.end]
        self.records = records_in([self.body])

    def flipped(self, *bits: int) -> bytes:
        body = bytearray(self.body)
        for bit in bits:
            body[bit // 8] ^= 1 << bit % 8
        return bytes(body)


RUN = Written(batch_of(b"one", b"two"), batch_of(b"three"), batch_of(b"four", b"five"))


def read_through(run: CachedRun, *, bytes_max: int = 1 << 30) -> tuple[list[Record], list[Corrupt]]:
    """All that a reader gets who steps over what is damaged."""
    at, records, damage = int(run.location.base_offset), list[Record](), list[Corrupt]()
    while at <= run.location.last_offset:
        try:
            body, following = run.read(at, bytes_max=bytes_max)
        except Corrupt as error:
            damage.append(error)
            following = Offset(int(error.details["next_offset"]))
        else:
            records += records_in([body], from_offset=at)
        assert following > at
        at = following
    assert at == run.location.last_offset + 1
    return records, damage


def with_last_offset_delta(batch: bytes, last_offset_delta: int) -> bytes:
    """With the CRC-32C that is right for it."""
    rest = batch[21:23] + last_offset_delta.to_bytes(4, "big", signed=True) + batch[27:]
    crc = int(crc32c(rest))
    return batch[:17] + crc.to_bytes(4, "big") + rest


# ── a sound run ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_sound_run_is_read_without_its_footer() -> None:
    run = open_run(RUN.body, RUN.location)
    assert (run.base_offsets, run.damaged) == ([100, 102, 103], {})
    assert records_in([run.body]) == [(100, b"one"), (101, b"two"), (102, b"three"), (103, b"four"), (104, b"five")]
    assert open_by_footer(RUN.body, RUN.location, RUN.entries) == run


@given(st.integers(100, 104), st.integers(0, len(RUN.body)))
def test_a_read_gives_whole_batches_from_the_one_with_the_offset_on_within_the_bytes_but_one_at_least(
    offset: int, bytes_max: int
) -> None:
    body, following = open_run(RUN.body, RUN.location).read(offset, bytes_max=bytes_max)
    records = records_in([body])
    assert records == [record for record in RUN.records if records[0][0] <= record[0] < following]
    assert records[0][0] <= offset < following
    assert len(body) <= bytes_max or following == next(base for base in [102, 103, 105] if base > offset)


def test_a_small_part_does_not_keep_a_large_run_in_memory() -> None:
    """Answers wait for their readers: of 8 MiB for each batch of a hundred bytes, memory would hold a few hundred readers."""
    large = Written(batch_of(b"x"), batch_of(b"y" * 100_000))
    run = open_run(large.body, large.location)
    assert run.read(100, bytes_max=1).body == large.body[: run.starts[1]]
    assert isinstance(run.read(100, bytes_max=1).body, bytes)
    assert isinstance(run.read(101, bytes_max=1).body, memoryview)  # most of the run: no copy


# ── damage ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, len(RUN.body) * 8 - 1))
def test_a_flipped_bit_costs_its_own_batch_and_no_other(bit: int) -> None:
    """Also in the first 16 bytes of a batch, which its CRC-32C does not cover: its length, offset or epoch is wrong then."""
    run = open_by_footer(RUN.flipped(bit), RUN.location, RUN.entries)
    (hit,) = [entry for entry in RUN.entries if entry.start <= RUN.location.start + bit // 8 < entry.start + entry.size_bytes]
    records, (damage,) = read_through(run)
    assert records == [record for record in RUN.records if not hit.base_offset <= record[0] <= hit.last_offset]
    end = hit.start + hit.size_bytes
    assert damage.details == {"key": RUN.location.key, "start": hit.start, "end": end, "next_offset": hit.last_offset + 1}
    assert damage.message.startswith(f"offset{'s' * (hit.last_offset > hit.base_offset)} {hit.base_offset}")
    assert f"is damaged at [{hit.start}, {end}): " in damage.message
    assert damage.hint.startswith(f"Read on from offset {hit.last_offset + 1}, or restore ")


@given(st.lists(st.integers(1, 3), min_size=1, max_size=8), st.data())
def test_a_reader_that_steps_over_the_damage_reads_every_sound_record_once(shape: list[int], data: st.DataObject) -> None:
    written = Written(*[batch_of(*[b"v" * 20] * records) for records in shape])
    hit = data.draw(st.sets(st.integers(0, len(shape) - 1)))
    bits = [(written.entries[index].start - written.location.start) * 8 + data.draw(st.integers(0, 60 * 8)) for index in hit]
    lost = {offset for index in hit for offset in range(written.entries[index].base_offset, written.entries[index].last_offset + 1)}
    run = open_by_footer(written.flipped(*bits), written.location, written.entries)
    records, damage = read_through(run, bytes_max=data.draw(st.sampled_from((1, 150, 1 << 20))))
    assert records == [record for record in written.records if record[0] not in lost]
    reported = {range(int(error.details["start"]), int(error.details["end"])) for error in damage}
    assert sum(map(len, reported)) == sum(written.entries[index].size_bytes for index in hit)


def test_consecutive_damaged_batches_are_reported_in_one_error() -> None:
    body = bytearray(RUN.body)
    body[: RUN.entries[2].start - RUN.location.start] = bytes(RUN.entries[2].start - RUN.location.start)
    run = open_by_footer(bytes(body), RUN.location, RUN.entries)
    with pytest.raises(Corrupt, match="offsets 100 to 102 can't be read") as damage:
        run.read(101, bytes_max=1)
    assert damage.value.details["next_offset"] == 103
    with pytest.raises(Corrupt, match="offset 102 can't be read"):
        run.read(102, bytes_max=1)
    assert records_in([run.read(103, bytes_max=1).body]) == RUN.records[3:]


@given(st.integers(0, len(RUN.body) * 8 - 1))
def test_without_a_footer_what_lies_before_the_damage_is_read(bit: int) -> None:
    records, (damage,) = read_through(open_run(RUN.flipped(bit), RUN.location))
    sound = [entry for entry in RUN.entries if (entry.start + entry.size_bytes - RUN.location.start) * 8 <= bit]
    first_lost = sound[-1].last_offset + 1 if sound else 100
    assert records == [record for record in RUN.records if record[0] < first_lost]
    start = sound[-1].start + sound[-1].size_bytes if sound else RUN.location.start
    assert damage.details == {"key": RUN.location.key, "start": start, "end": RUN.location.end, "next_offset": 105}


@given(st.integers(0, len(RUN.body) - 1))
def test_of_an_object_that_ends_too_early_its_whole_batches_are_read(kept: int) -> None:
    whole = [entry for entry in RUN.entries if entry.start + entry.size_bytes - RUN.location.start <= kept]
    expected = [record for record in RUN.records if whole and record[0] <= whole[-1].last_offset]
    for run in (open_run(RUN.body[:kept], RUN.location), open_by_footer(RUN.body[:kept], RUN.location, RUN.entries)):
        records, (damage,) = read_through(run)
        assert records == expected
        assert damage.details["next_offset"] == 105


def test_a_batch_of_another_segment_is_damage_though_its_crc_is_right() -> None:
    """The same size, the same offsets, and another record: only the CRC-32C in the footer knows."""
    elsewhere = Written(batch_of(b"one", b"TWO"), batch_of(b"three"), batch_of(b"four", b"five"))
    run = open_by_footer(elsewhere.body, RUN.location, RUN.entries)
    records, (damage,) = read_through(run)
    assert records == RUN.records[2:]
    assert damage.message.endswith("there is another batch than the footer tells of")


@pytest.mark.parametrize("last_offset_delta", [-1, -2, -(2**31), 2**31 - 1])
def test_a_batch_that_ends_before_its_beginning_or_behind_its_run_is_damage_though_its_crc_is_right(last_offset_delta: int) -> None:
    end = RUN.entries[0].size_bytes
    run = open_run(with_last_offset_delta(RUN.body[:end], last_offset_delta) + RUN.body[end:], RUN.location)
    assert run.damaged.keys() == {0}
    assert read_through(run)[0] == []


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (RUN.location._replace(base_offset=Offset(99)), "the batch says offset 100 where 99 comes next"),
        (RUN.location._replace(leader_epoch=LeaderEpoch(EPOCH + 1)), f"the batch says leader epoch {EPOCH}, its run {EPOCH + 1}"),
        (RUN.location._replace(last_offset=Offset(110)), "0 are there"),
        (RUN.location._replace(last_offset=Offset(103)), "the batch goes to offset 104, beyond its run"),
    ],
)
def test_a_run_that_is_not_what_the_index_says_is_damaged(changed: RunLocation, why: str) -> None:
    _, (damage,) = read_through(open_run(RUN.body, changed))
    assert why in damage.message


@pytest.mark.parametrize(
    "entries",
    [
        [],
        RUN.entries[:2],
        RUN.entries[1:],
        [*RUN.entries[:2], RUN.entries[2]._replace(last_offset=Offset(105))],
        [RUN.entries[0], RUN.entries[1]._replace(start=RUN.entries[1].start + 1), RUN.entries[2]],
        [RUN.entries[0]._replace(last_offset=Offset(99)), *RUN.entries[1:]],
    ],
)
def test_a_footer_that_describes_other_batches_is_refused(entries: list[BatchEntry]) -> None:
    with pytest.raises(Corrupt, match="the footer does not tell of this run"):
        open_by_footer(RUN.body, RUN.location, entries)


def test_the_newest_timestamp_of_a_damaged_batch_is_known_from_the_footer() -> None:
    run = open_by_footer(RUN.flipped(0), RUN.location, RUN.entries)
    assert [run.max_timestamp(index) for index in range(3)] == [entry.max_timestamp for entry in RUN.entries]
    assert open_run(RUN.flipped(0), RUN.location).max_timestamp(0) == RUN.location.max_timestamp
