"""One number bounds the memory of a process: its buffers and caches get shares, and what is set by name has to fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from compaction.settings import CompactionSettings
from gateway.memory_shares import MEMORY_BYTES_DEFAULT, PARTS, PROCESS_BYTES, SHARES, check_memory, memory_shares, shown_bytes
from gateway.settings import BrokerSettings, GatewaySettings, load_settings
from metadata.errors import InvalidArgument
from segments.settings import MIB, SegmentSettings


def loaded(**flags: Any) -> BrokerSettings:
    return load_settings({"data_dir": Path("d"), **flags}, {})


def test_the_defaults_of_the_classes_are_the_shares_of_the_default_memory() -> None:
    settings = loaded()
    assert settings.segments == SegmentSettings(linger_ms=5.0, puts_per_second_max=400.0)
    assert settings.gateway == GatewaySettings()
    assert settings.compaction == CompactionSettings()


def test_twice_the_memory_makes_every_part_larger() -> None:
    small, large = loaded(memory_bytes_max="1GiB"), loaded(memory_bytes_max="2GiB")
    assert large.segments.read_cache_bytes_max > 2 * small.segments.read_cache_bytes_max
    assert large.segments.footer_cache_bytes_max > 2 * small.segments.footer_cache_bytes_max
    assert large.gateway.answer_bytes_max > 2 * small.gateway.answer_bytes_max
    assert large.gateway.grpc_waiting_bytes_max > 2 * small.gateway.grpc_waiting_bytes_max
    assert loaded(memory_bytes_max="4GiB").compaction.key_map_bytes_max > 2 * small.compaction.key_map_bytes_max


def test_a_part_that_is_set_keeps_its_value_and_the_others_their_shares_where_they_fit() -> None:
    usual, chosen = loaded().segments, loaded(read_cache_bytes_max="100MiB").segments
    assert chosen.read_cache_bytes_max == 100 * MIB
    assert chosen.buffer_bytes_max < usual.buffer_bytes_max, "the read cache takes its bytes first"
    assert loaded(read_cache_bytes_max="1MiB").segments.buffer_bytes_max == usual.buffer_bytes_max, (
        "no part gets more than its shares"
    )


def test_a_large_cache_takes_from_the_other_parts_as_long_as_they_can_work() -> None:
    settings = loaded(read_cache_bytes_max="512MiB")
    settings.check_memory()
    assert settings.segments.history_read_bytes_max >= 40 * MIB


def test_a_small_memory_still_leaves_room_for_what_other_settings_need() -> None:
    settings = loaded(memory_bytes_max="448MiB", segment_bytes_max="24MiB")
    assert settings.segments.buffer_bytes_max == 24 * MIB
    assert settings.gateway.grpc_waiting_bytes_max == 2 * settings.gateway.request_bytes_max
    settings.check_memory()


def test_parts_that_do_not_fit_are_refused_with_what_to_change() -> None:
    with pytest.raises(
        InvalidArgument, match=r"memory_bytes_max is 1GiB, and its parts need 1128MiB: .*read_cache_bytes_max 768"
    ) as no:
        loaded(read_cache_bytes_max="768MiB").check_memory()
    assert no.value.hint == "Set memory_bytes_max to 1128MiB or more, or lower read_cache_bytes_max."
    loaded(read_cache_bytes_max="768MiB", memory_bytes_max="1128MiB").check_memory()


@example(
    chosen={
        "buffer_bytes_max": 64 * MIB,
        "footer_cache_bytes_max": 64 * MIB,
        "grpc_waiting_bytes_max": 64 * MIB,
        "history_read_bytes_max": 507 * MIB + 1,
    },
    memory_bytes_max=1,
    compacts=False,
)
@given(
    chosen=st.dictionaries(st.sampled_from(sorted(PARTS)), st.integers(64 * MIB, 1 << 40)),
    memory_bytes_max=st.integers(1, 1 << 40),
    compacts=st.booleans(),
)
def test_a_hint_can_be_followed(chosen: dict[str, int], memory_bytes_max: int, compacts: bool) -> None:
    def start(memory_bytes_max: int) -> None:
        parts = memory_shares(memory_bytes_max, chosen=chosen, least={}, compacts=compacts)
        assert parts.items() >= chosen.items()
        check_memory(memory_bytes_max, parts, serves=True, compacts=compacts)

    try:
        start(memory_bytes_max)
    except InvalidArgument as error:
        named = error.hint.removeprefix("Set memory_bytes_max to ").partition(" ")[0]
        start(int(named[:-3]) * {"MiB": MIB, "GiB": 1024 * MIB}[named[-3:]])


def test_each_process_counts_what_it_holds() -> None:
    loaded(key_map_bytes_max="2GiB").check_memory()  # a broker that does not compact has no key map
    with pytest.raises(InvalidArgument, match="key_map_bytes_max 2GiB"):
        loaded(key_map_bytes_max="2GiB", compact="true").check_memory()
    with pytest.raises(InvalidArgument, match="key_map_bytes_max 2GiB"):
        loaded(key_map_bytes_max="2GiB").check_memory(serves=False)
    shared = loaded(read_cache_bytes_max="2GiB")  # a setting of the brokers that the chart gives to compactors as well
    shared.check_memory(serves=False)
    assert shared.compaction.key_map_bytes_max == CompactionSettings().key_map_bytes_max


def test_a_broker_that_compacts_leaves_memory_for_the_files_that_it_makes() -> None:
    alone, both = loaded(memory_bytes_max="2GiB"), loaded(memory_bytes_max="2GiB", compact="true")
    assert both.segments.read_cache_bytes_max < alone.segments.read_cache_bytes_max
    assert both.compaction.key_map_bytes_max == alone.compaction.key_map_bytes_max, (
        "a compactor has the same map, and the same files"
    )
    parts = sum(part.shares * part.times for part in PARTS.values()) * both.segments.read_cache_bytes_max // 2
    assert PROCESS_BYTES + parts + both.compaction.files_bytes <= 2 << 30
    small = loaded(compact="true")
    assert small.segments == loaded().segments, "files of a small cluster are small: a trial starts with the default memory"


def test_responses_count_at_each_listener() -> None:
    with pytest.raises(InvalidArgument, match="answer_bytes_max 512MiB x 3"):
        loaded(answer_bytes_max="512MiB").check_memory()


def test_less_than_the_least_parts_need_is_refused() -> None:
    with pytest.raises(
        InvalidArgument, match="memory_bytes_max is 64MiB, and its parts need 380MiB: 192MiB for the process"
    ) as refused:
        loaded(memory_bytes_max="64MiB").check_memory()
    assert refused.value.hint == "Set memory_bytes_max to 380MiB or more."
    loaded(memory_bytes_max="380MiB").check_memory()


def test_some_shares_are_not_given_out() -> None:
    assert sum(part.shares * part.times for part in PARTS.values()) == SHARES - 3
    assert MEMORY_BYTES_DEFAULT - PROCESS_BYTES == SHARES * 32 * MIB


@pytest.mark.parametrize(
    ("count", "shown"), [(2 << 30, "2GiB"), (64 * MIB, "64MiB"), (48 << 10, "48KiB"), (1000, "1000"), (0, "0")]
)
def test_bytes_are_shown_as_settings_take_them(count: int, shown: str) -> None:
    assert shown_bytes(count) == shown
