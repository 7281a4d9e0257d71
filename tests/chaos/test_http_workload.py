"""What a client without an SDK may take an answer for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.http_workload import judge
from tests.chaos.workload import stored_value, value_of

NO_LEADER = {"code": "NO_LEADER", "detail": "no leader", "retryable": True, "nothing_was_written": True}
UNKNOWN = {"code": "OUTCOME_UNKNOWN", "detail": "no answer", "retryable": True, "nothing_was_written": False}
FENCED = {"code": "PRODUCER_FENCED", "detail": "a newer epoch", "retryable": False, "nothing_was_written": True}


@pytest.mark.parametrize(
    ("status", "content", "outcome"),
    [
        (200, {"results": [{"partition": 0, "offset": 7}]}, "done"),
        (201, {"producer_id": 7}, "done"),
        (503, NO_LEADER, "nothing written"),
        (504, UNKNOWN, "not known"),
        (500, {"code": "INTERNAL", "detail": "a bug", "retryable": False, "nothing_was_written": False}, "not known"),
        (409, FENCED, "refused for good"),
        (200, {"results": [{"partition": 0, "error": NO_LEADER}]}, "nothing written"),
        (200, {"results": [{"partition": 0, "error": UNKNOWN}]}, "not known"),
        (200, {"results": [{"partition": 0, "error": FENCED}]}, "refused for good"),
    ],
)
def test_an_answer_says_what_comes_next(status: int, content: Any, outcome: str) -> None:
    assert judge(status, content).outcome == outcome


def test_a_value_travels_padded_and_is_found_again() -> None:
    assert value_of(stored_value("http-key#17")) == "http-key#17"
    assert len(stored_value("http-key#17")) > 200
