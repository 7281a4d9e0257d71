"""The settings of a client."""

from __future__ import annotations

import dataclasses

import pytest

from metadata.errors import InvalidArgument
from tidelog.client import connect
from tidelog.settings import ClientSettings, SettingChanges, settings_from


def test_connect_names_every_setting() -> None:
    assert set(SettingChanges.__annotations__) == {field.name for field in dataclasses.fields(ClientSettings)}
    for field in dataclasses.fields(ClientSettings):
        assert SettingChanges.__annotations__[field.name].__forward_arg__ == field.type


def test_an_unknown_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidArgument, match="no setting 'lingerms'") as raised:
        connect(lingerms=5)  # type: ignore[call-arg]
    assert raised.value.hint == "Did you mean 'linger_ms'?"
    with pytest.raises(InvalidArgument) as raised:
        settings_from({"x": 1})
    assert "linger_ms" in raised.value.hint


@pytest.mark.parametrize(
    "changes",
    [
        {"acks": "some"},
        {"compression": "brotli"},
        {"partitioner": "random"},
        {"linger_ms": -1},
        {"linger_ms": "5"},
        {"salt_count": 0},
        {"salt_count": 1.5},
        {"salt_count": True},
        {"buffer_bytes_max": 1000},
        {"fetch_wait_ms_max": 60_001},
        {"delivery_timeout_ms": 0},
        {"delivery_timeout_ms": float("inf")},
        {"retry_pause_ms": float("nan")},
        {"linger_ms": 100, "delivery_timeout_ms": 100},
        {"fetch_bytes_max": (1 << 30) + 1},
    ],
    ids=repr,
)
def test_a_value_that_can_not_be_meant_is_refused(changes: SettingChanges) -> None:
    with pytest.raises(InvalidArgument) as raised:
        settings_from(changes)
    assert next(iter(changes)) in raised.value.message
    assert raised.value.hint


def test_no_linger_is_a_choice() -> None:
    assert settings_from({"linger_ms": 0}).linger_ms == 0
