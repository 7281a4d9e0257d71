"""Settings of the log are checked when they are made."""

from __future__ import annotations

from dataclasses import fields

import pytest

from metadata.errors import InvalidArgument
from segments.settings import SegmentSettings

NAMES = [field.name for field in fields(SegmentSettings)]
MAY_BE_ZERO = {"linger_ms", "puts_per_second_max", "disk_cache_bytes_max"}


def with_setting(name: str, value: float) -> SegmentSettings:
    return SegmentSettings(**{name: value})  # type: ignore[arg-type]  # names and values come from parametrize


def test_the_defaults_are_legal_and_those_of_the_design() -> None:
    settings = SegmentSettings()
    assert (settings.segment_bytes_max, settings.linger_ms) == (8 << 20, 100.0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_every_setting_is_a_finite_number_that_is_not_negative(name: str, value: float) -> None:
    with pytest.raises(InvalidArgument, match=name):
        with_setting(name, value)


@pytest.mark.parametrize("name", sorted(set(NAMES) - MAY_BE_ZERO))
def test_zero_is_refused_where_it_would_stop_the_log(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} is 0"):
        with_setting(name, 0)


@pytest.mark.parametrize("name", sorted(MAY_BE_ZERO))
def test_zero_is_legal_where_it_means_something(name: str) -> None:
    assert getattr(with_setting(name, 0), name) == 0


def test_the_buffer_has_room_for_a_segment() -> None:
    with pytest.raises(InvalidArgument, match=r"buffer_bytes_max \(99\) is below segment_bytes_max \(100\)"):
        SegmentSettings(segment_bytes_max=100, buffer_bytes_max=99)
    assert SegmentSettings(segment_bytes_max=100, buffer_bytes_max=100).buffer_bytes_max == 100
