from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.fuzz_openapi import broker_in_a_thread, fuzz


@pytest.mark.slow
def test_no_request_of_the_openapi_document_is_answered_as_a_fault_of_the_broker(tmp_path: Path) -> None:
    with broker_in_a_thread(tmp_path) as url:
        sent, faults = fuzz(url, examples=4)
    assert not faults
    assert sent > 100
