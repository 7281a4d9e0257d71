from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.access.acl import Scope, rights_of_scopes
from metadata.access.api_key import (
    FORGOTTEN_AFTER_MS,
    ApiKey,
    Credential,
    check_credential,
    decode_key,
    encode_key,
    forgettable,
    hash_secret,
    new_key,
    parse_basic,
    parse_key,
)
from metadata.errors import Corrupt, InvalidArgument, Unauthenticated
from metadata.model import Revision
from metadata.secret import Secret
from metadata.store.interface import KeyValue

NOW = 1_767_225_600_000


def made(**terms: object) -> tuple[ApiKey, Secret]:
    given_terms: dict[str, object] = {"principal": "billing", "id_bytes": bytes(8), "secret_bytes": bytes(range(32)), "now_ms": NOW}
    return new_key(**(given_terms | terms))  # type: ignore[arg-type]  # some of them are wrong on purpose


def kept(key: str, value: bytes) -> KeyValue:
    return KeyValue(key, value, Revision(1), Revision(1), version=1)


def shown(text: Secret) -> Credential:
    credential = parse_key(text.reveal())
    assert credential is not None
    return credential


def why_not(key: ApiKey | None, credential: Credential, now_ms: int = NOW) -> str:
    with pytest.raises(Unauthenticated) as refused:
        check_credential(key, credential, now_ms)
    return refused.value.message


def test_a_new_key_is_returned_with_its_text_and_stored_as_a_digest() -> None:
    key, text = made()
    assert text.reveal() == "tlk_0000000000000000_" + bytes(range(32)).hex()
    assert key.secret_sha256 == hash_secret(bytes(range(32)).hex())
    assert bytes(range(32)).hex().encode() not in encode_key(key)
    assert check_credential(key, shown(text), NOW) is key


@given(st.binary(min_size=8, max_size=8), st.binary(min_size=32, max_size=32), st.integers(0, 2**50))
def test_a_stored_key_is_read_back(id_bytes: bytes, secret: bytes, lives_ms: int) -> None:
    scopes = (Scope("read", "topic", "orders"), Scope("read", "group", "b", "prefix"))
    expires_at_ms = NOW + lives_ms if lives_ms else 0
    key, text = made(id_bytes=id_bytes, secret_bytes=secret, expires_at_ms=expires_at_ms, scopes=scopes, description="nightly")
    assert decode_key(kept(f"/tidelog/keys/{key.key_id}", encode_key(key))) == key
    assert check_credential(key, shown(text), NOW) == key
    basic = base64.b64encode(f"{key.key_id}:{secret.hex()}".encode()).decode()
    assert parse_basic(basic) == shown(text)
    assert parse_basic(base64.b64encode(f"{key.key_id}:{text.reveal()}".encode()).decode()) == shown(text)


def test_a_scope_that_only_a_newer_version_knows_stays_and_allows_nothing() -> None:
    import msgspec

    key, _ = made()
    newer = msgspec.structs.replace(key, scopes=(Scope("fly", "topic", "orders"), Scope("read", "topic", "orders")))
    stored_at = f"/tidelog/keys/{key.key_id}"
    held = decode_key(kept(stored_at, encode_key(newer)))
    assert held == newer
    assert decode_key(kept(stored_at, encode_key(msgspec.structs.replace(held, revoked_at_ms=NOW)))).scopes == newer.scopes
    rights = rights_of_scopes(held.scopes)
    assert rights.allow("read", "topic", "orders")
    assert not rights_of_scopes(held.scopes[:1]).allow("describe", "topic", "orders")
    with pytest.raises(Corrupt):
        decode_key(kept(stored_at, encode_key(msgspec.structs.replace(key, scopes=(Scope("", "topic"),)))))


@given(st.text())
def test_no_text_but_that_of_a_key_is_one(text: str) -> None:
    assert parse_key(text) is None
    assert parse_basic(text) is None


def test_a_wrong_secret_gets_one_answer_for_missing_valid_and_expired_keys() -> None:
    key, text = made(expires_at_ms=NOW + 1)
    other = Credential(key.key_id, Secret("00" * 32))
    assert why_not(key, other) == why_not(None, other) == why_not(key, other, NOW + 5)
    assert "expired" in why_not(key, shown(text), NOW + 1)


def test_a_key_that_was_revoked_or_has_expired_counts_for_nothing_from_then_on() -> None:
    import msgspec

    key, text = made(expires_at_ms=NOW + 10)
    assert check_credential(key, shown(text), NOW + 9)
    assert "has expired" in why_not(key, shown(text), NOW + 10)
    revoked = msgspec.structs.replace(key, revoked_at_ms=NOW + 1)
    assert "was revoked" in why_not(revoked, shown(text), NOW + 2)
    assert revoked.state(NOW + 20) == "revoked"


@pytest.mark.parametrize(
    "terms",
    [
        {"principal": ""},
        {"principal": "*"},
        {"principal": " a"},
        {"principal": "a\nb"},
        {"principal": "x" * 250},
        {"expires_at_ms": NOW},
        {"expires_at_ms": -1},
        {"expires_at_ms": 2**60},
        {"description": "two\nlines"},
        {"description": "x" * 201},
        {"scopes": [Scope("fly", "topic")]},
        {"scopes": [Scope("read", "topic")] * 101},
    ],
)
def test_a_key_that_makes_no_sense_is_not_made(terms: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        made(**terms)


def test_keys_are_forgotten_a_month_after_their_end() -> None:
    import msgspec

    key, _ = made(expires_at_ms=NOW + 10)
    unexpiring, _ = made()
    revoked = msgspec.structs.replace(unexpiring, revoked_at_ms=NOW + 10)
    assert forgettable([key, unexpiring, revoked], NOW + 9 + FORGOTTEN_AFTER_MS) == []
    assert forgettable([key, unexpiring, revoked], NOW + 10 + FORGOTTEN_AFTER_MS) == [key, revoked]


def test_an_invalid_api_key_record_is_corrupt_and_the_error_names_its_store_key() -> None:
    key, _ = made()
    for stored_at, value in (
        ("/tidelog/keys/0000000000000000", b"{"),
        ("/tidelog/keys/1111111111111111", encode_key(key)),
        ("/tidelog/keys/0000000000000000", encode_key(key).replace(b'"secret_sha256":"', b'"secret_sha256":"x')),
    ):
        with pytest.raises(Corrupt) as refused:
            decode_key(kept(stored_at, value))
        assert stored_at in refused.value.message
        assert key.secret_sha256 not in refused.value.message
