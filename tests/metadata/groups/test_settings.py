from __future__ import annotations

import pytest

from metadata.errors import InvalidArgument
from metadata.groups.settings import GroupSettings


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"group_members_max": 0}, "group_members_max"),
        ({"group_initial_rebalance_delay_ms": -1}, "group_initial_rebalance_delay_ms"),
        ({"group_session_timeout_ms_min": 2_000_000}, "group_session_timeout_ms_min"),
        ({"group_metadata_bytes_max": 701 << 10}, "group_metadata_bytes_max"),
        ({"group_bytes_max": 2 << 20}, "group_bytes_max"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(given: dict[str, int], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        GroupSettings(**given)


def test_waits_that_save_requests_may_be_left_out() -> None:
    assert GroupSettings(group_initial_rebalance_delay_ms=0, commit_linger_ms=0, offset_metadata_bytes_max=0)
