from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.console.session_cookie import SESSION_MS, SessionSealer
from metadata.secret import Secret

NOW_MS = 1_750_000_000_000
SEALER = SessionSealer(Secret("a secret of the cluster"), os.urandom)


def test_a_session_is_opened_by_any_broker_with_the_secret_of_the_cluster() -> None:
    session = SEALER.new_session("Bearer tlk_1_2", now_ms=NOW_MS)
    other = SessionSealer(Secret("a secret of the cluster"), os.urandom)
    assert other.open(SEALER.seal(session), now_ms=NOW_MS) == session


def test_a_session_of_another_cluster_is_not_opened() -> None:
    other = SessionSealer(Secret("a secret of another cluster"), os.urandom)
    assert SEALER.open(other.seal(other.new_session("", now_ms=NOW_MS)), now_ms=NOW_MS) is None


def test_a_session_ends_after_its_time() -> None:
    cookie = SEALER.seal(SEALER.new_session("", now_ms=NOW_MS))
    assert SEALER.open(cookie, now_ms=NOW_MS + SESSION_MS - 1) is not None
    assert SEALER.open(cookie, now_ms=NOW_MS + SESSION_MS) is None


@given(at=st.integers(min_value=0), flipped=st.integers(min_value=1, max_value=127))
def test_a_changed_cookie_is_not_opened(at: int, flipped: int) -> None:
    cookie = SEALER.seal(SEALER.new_session("Bearer tlk_1_2", now_ms=NOW_MS))
    at %= len(cookie)
    changed = cookie[:at] + chr(ord(cookie[at]) ^ flipped) + cookie[at + 1 :]
    assert SEALER.open(changed, now_ms=NOW_MS) is None


@pytest.mark.parametrize("credentials", ["", "x", "xx"])
def test_other_text_of_the_same_bytes_is_no_session(credentials: str) -> None:
    # Where base64 ends in padding, its last character has bits that decoders leave out.
    cookie = SEALER.seal(SEALER.new_session(credentials, now_ms=NOW_MS))
    text = cookie.rstrip("=")
    others = [text[:-1] + chr(code) + cookie[len(text) :] for code in range(32, 127) if chr(code) != text[-1]]
    assert [other for other in others if SEALER.open(other, now_ms=NOW_MS)] == []


@given(st.text())
def test_any_text_in_place_of_a_cookie_is_no_session(text: str) -> None:
    assert SEALER.open(text, now_ms=NOW_MS) is None


def test_a_cookie_shows_no_credentials() -> None:
    session = SEALER.new_session("Bearer tlk_1_2", now_ms=NOW_MS)
    assert "tlk" not in SEALER.seal(session)
    assert "tlk" not in repr(session)


def test_credentials_that_do_not_fit_into_a_cookie_are_refused() -> None:
    with pytest.raises(ValueError, match="the session does not fit into a cookie"):
        SEALER.seal(SEALER.new_session("Bearer " + "x" * 4_000, now_ms=NOW_MS))
