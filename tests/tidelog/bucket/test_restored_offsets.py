"""Committed offsets of a snapshot, against the ends that a restore has found."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from compaction.audit.findings import RestoreFinding
from metadata.groups.offsets import CommittedOffset, decode_offset, encode_offset
from metadata.model import Partition, Revision, TopicId, TopicPartition
from metadata.store.interface import KeyValue, Put
from metadata.store.keys import KeyLayout
from tidelog.bucket.restored_offsets import set_back

LAYOUT = KeyLayout()
ORDERS = TopicId("a" * 32)


def partition(number: int) -> TopicPartition:
    return TopicPartition(ORDERS, Partition(number))


def committed(offset: int, *, number: int = 0, group: str = "billing/é", epoch: int = 4) -> Put:
    value = CommittedOffset(offset=offset, leader_epoch=epoch, metadata="m", committed_at_ms=5, generation=7)
    return Put(LAYOUT.offset(group, partition(number)), encode_offset(value))


def held(put: Put) -> CommittedOffset:
    return decode_offset(KeyValue(put.key, put.value, Revision(1), Revision(1), 1))


def moved(*puts: Put, ends: Mapping[TopicPartition, int]) -> tuple[list[Put], int, list[RestoreFinding]]:
    findings: list[RestoreFinding] = []
    kept, count = set_back(puts, ends, LAYOUT, findings)
    return kept, count, findings


def test_an_offset_beyond_the_end_is_set_back_to_it_and_keeps_all_but_its_epoch() -> None:
    (kept,), count, findings = moved(committed(120), ends={partition(0): 80})
    assert held(kept) == CommittedOffset(offset=80, leader_epoch=-1, metadata="m", committed_at_ms=5, generation=7)
    assert count == 1
    (finding,) = findings
    assert (finding.severity, finding.where) == ("damage", "group billing/é")
    assert f"{ORDERS}/0 from 120 to 80" in finding.what


def test_offsets_that_are_not_beyond_a_known_end_stay_as_they_were() -> None:
    puts = [committed(80), committed(3, number=1), committed(9, number=2)]
    assert moved(*puts, ends={partition(0): 80, partition(1): 80}) == (puts, 0, [])


def test_other_keys_and_damaged_offsets_are_kept_as_they_are() -> None:
    puts = [
        Put(LAYOUT.group("billing"), b"g"),
        Put(LAYOUT.offset("billing", partition(0)), b"{"),
        Put(f"{LAYOUT.committed_offsets}x", b"41"),
    ]
    assert moved(*puts, ends={partition(0): 0}) == (puts, 0, [])


def test_a_finding_for_each_group_names_some_partitions_and_counts_the_rest() -> None:
    puts = [committed(10 + number, number=number) for number in range(5)] + [committed(10, group="audit")]
    _, count, findings = moved(*puts, ends={partition(number): 0 for number in range(5)})
    assert count == 6
    assert [finding.where for finding in findings] == ["group audit", "group billing/é"]
    assert f"{ORDERS}/2 from 12 to 0, and 2 more" in findings[1].what


@given(st.dictionaries(st.integers(0, 5), st.integers(0, 20)), st.dictionaries(st.integers(0, 5), st.integers(0, 20)))
def test_no_offset_is_beyond_its_end_and_none_has_grown(offsets: dict[int, int], ends: dict[int, int]) -> None:
    puts = [committed(offset, number=number) for number, offset in offsets.items()]
    kept, _, _ = moved(*puts, ends={partition(number): end for number, end in ends.items()})
    for put, (number, offset) in zip(kept, offsets.items(), strict=True):
        assert held(put).offset == min(offset, ends.get(number, offset))
