from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.access.quota import BURST_S, Quota, TokenBucket, check_quota, decode_quota, encode_quota, quoted_principal
from metadata.errors import Corrupt, InvalidArgument
from metadata.model import Revision
from metadata.store.interface import KeyValue


@given(
    st.integers(1, 1_000_000),
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 3_000_000)), min_size=1, max_size=40),
)
def test_no_more_is_let_through_than_the_rate_a_burst_and_the_last_request(rate: int, asked: list[tuple[float, int]]) -> None:
    bucket, now_s, through, last = TokenBucket(rate, 0.0), 0.0, 0, 0
    for pause_s, count in asked:
        now_s += pause_s
        if bucket.wait_s(now_s) == 0:
            bucket.take(count, now_s)
            through, last = through + count, count
        assert through <= (1 + 1e-6) * (BURST_S * rate + now_s * rate + last)


def test_a_caller_that_waits_the_returned_time_is_admitted() -> None:
    bucket = TokenBucket(10, 0.0)
    bucket.take(35, 0.0)
    assert bucket.wait_s(0.0) == pytest.approx(2.5)
    assert bucket.wait_s(2.5) == pytest.approx(0.0)
    assert bucket.wait_s(1.0) == pytest.approx(0.0)  # a clock that goes back takes nothing


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    bucket = TokenBucket(10, 0.0)
    bucket.take(20, 1_000_000.0)
    assert bucket.wait_s(1_000_000.0) == pytest.approx(1.0)


@pytest.mark.slow
@given(st.text(min_size=1, max_size=20).filter(lambda name: name.isprintable() and name == name.strip() and name != "*"))
def test_a_quota_is_read_back_whatever_its_principal_is_called(principal: str) -> None:
    quota = Quota(principal=principal, requests_per_second=7)
    kept = KeyValue(f"/tidelog/quotas/{quoted_principal(principal)}", encode_quota(quota), Revision(1), Revision(1), version=1)
    assert decode_quota(kept) == quota


@pytest.mark.parametrize("wrong", [{}, {"bytes_in_per_second": -1}, {"requests_per_second": 2**50}])
def test_a_quota_that_limits_nothing_or_wrongly_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        check_quota(Quota(principal="billing", **wrong))


def test_a_value_that_is_no_quota_is_corrupt() -> None:
    with pytest.raises(Corrupt):
        decode_quota(KeyValue("/tidelog/quotas/a", b"[]", Revision(1), Revision(1), version=1))
