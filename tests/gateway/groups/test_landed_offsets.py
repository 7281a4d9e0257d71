"""Which commits only move forward, by what is known to have landed."""

from __future__ import annotations

from gateway.groups.landed_offsets import LandedOffsets, OffsetWrite, key_of
from metadata.groups.model import NO_GENERATION
from metadata.groups.offsets import CommittedOffset
from metadata.store.interface import Delete, Put


def write(key: str, offset: int, generation: int = 1) -> OffsetWrite:
    return OffsetWrite(Put(key, b""), committed(offset, generation))


def committed(offset: int, generation: int = 1) -> CommittedOffset:
    return CommittedOffset(offset=offset, generation=generation, committed_at_ms=0)


def known(**stored: CommittedOffset) -> LandedOffsets:
    landed = LandedOffsets()
    landed.begin()
    landed.read(stored)
    return landed


def forward(landed: LandedOffsets, *writes: OffsetWrite | Delete) -> list[str]:
    return [key_of(each) for each in landed.forward(writes)]


def test_an_offset_below_one_of_its_own_generation_is_left_out() -> None:
    landed = known(a=committed(12), b=committed(12), c=committed(12))
    assert forward(landed, write("a", 3), write("b", 12), write("c", 13), write("d", 0)) == ["b", "c", "d"]


def test_a_commit_of_another_generation_or_an_operator_is_no_bound() -> None:
    landed = known(a=committed(12, 1), b=committed(1_000, NO_GENERATION))
    assert forward(landed, write("a", 3, 2), write("b", 3, 2)) == ["a", "b"]
    assert forward(landed, write("b", 3, NO_GENERATION)) == ["b"]


def test_an_offset_that_was_committed_back_on_purpose_is_the_new_bound() -> None:
    landed = known(a=committed(12))
    landed.note([write("a", 3)])
    assert forward(landed, write("a", 5)) == ["a"]
    assert forward(landed, write("a", 2)) == []
    landed.note([Delete("a")])
    assert forward(landed, write("a", 0)) == ["a"]


def test_a_commit_that_lands_while_the_store_is_read_counts_more_than_the_read() -> None:
    landed = LandedOffsets()
    landed.note([write("a", 99)])
    landed.begin()
    landed.note([write("a", 12), write("b", 7), Delete("c")])
    landed.read({"a": committed(3), "c": committed(8)})
    assert forward(landed, write("a", 5), write("b", 5), write("c", 5)) == ["c"]


def test_a_reading_during_which_something_became_unknown_does_not_count() -> None:
    landed = LandedOffsets()
    landed.begin()
    landed.forget()
    landed.read({"a": committed(3)})
    assert not landed.is_known
