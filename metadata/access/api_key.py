"""Defines API keys: the text that a client sends, the stored record, and when a key expires. Pure.

    tlk_{key_id}_{secret}          key_id 16 hex digits · secret 64 hex digits, 32 random bytes

The value of /{cluster}/keys/{key_id}, JSON in UTF-8:

    {"format_version":1,"key_id":"…","principal":"billing","secret_sha256":"…64 hex digits…","created_at_ms":1767225600000,
     "created_by":"admin","description":"","expires_at_ms":0,"revoked_at_ms":0,"scopes":[{"operation":"read", …}]}

SHA-256 alone suffices for a secret of 256 random bits: it cannot be guessed, and a check costs a microsecond. Invariants: the
secret stands only in the text that is shown once, at creation; a client without the secret cannot learn whether a key exists.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from metadata.access.acl import Scope, check_principal, check_scope, check_stored_scope
from metadata.access.scram import (
    ITERATIONS_MIN,
    MECHANISMS,
    ScramCredential,
    check_scram_credential,
    credential_of_password,
)
from metadata.errors import Corrupt, InvalidArgument, Rejected, TidelogError, Unauthenticated
from metadata.secret import Secret
from metadata.store.interface import KeyValue

FORMAT_VERSION: Final = 1
PREFIX: Final = "tlk_"
KEY_ID_BYTES: Final = 8
SECRET_BYTES: Final = 32
# Of one cluster: every broker holds them all.
KEYS_MAX: Final = 10_000
SCOPES_MAX: Final = 100
DESCRIPTION_CHARACTERS_MAX: Final = 200
# A key is listed for this time after it was revoked or has expired.
FORGOTTEN_AFTER_MS: Final = 30 * 86_400_000
_TEXT: Final = re.compile(r"tlk_([0-9a-f]{16})_([0-9a-f]{64})", re.ASCII)
_KEY_ID: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what is stored of a key: everything but its secret."""

    key_id: str
    principal: str
    secret_sha256: str
    created_at_ms: int
    # The principal that created it; empty where the broker requires no credentials.
    created_by: str = ""
    description: str = ""
    # Milliseconds since 1970; 0: never.
    expires_at_ms: int = 0
    # Milliseconds since 1970; 0: not revoked.
    revoked_at_ms: int = 0
    # Narrow the rights of the principal; empty: all its rights.
    scopes: tuple[Scope, ...] = ()
    # By what SCRAM checks the whole text of the key as a password; none of a key that an earlier version made.
    scram: tuple[ScramCredential, ...] = ()
    format_version: int = FORMAT_VERSION

    def state(self, now_ms: int) -> str:
        """Returns "active", "revoked" or "expired"."""
        if self.revoked_at_ms:
            return "revoked"
        return "expired" if self.expires_at_ms and self.expires_at_ms <= now_ms else "active"


class Credential(NamedTuple):
    """Holds the key id and the secret that a client has sent."""

    key_id: str
    secret: Secret


def new_key(
    *,
    principal: str,
    id_bytes: bytes,
    secret_bytes: bytes,
    now_ms: int,
    expires_at_ms: int = 0,
    scopes: Iterable[Scope] = (),
    description: str = "",
    created_by: str = "",
    salts: Mapping[str, bytes] | None = None,
) -> tuple[ApiKey, Secret]:
    """Returns a new key and the text that its holder sends. The caller brings the random bytes. Raises InvalidArgument.

    `salts`: SALT_BYTES random bytes for each mechanism of SCRAM that the key is for.
    """
    assert len(id_bytes) == KEY_ID_BYTES
    assert len(secret_bytes) == SECRET_BYTES
    check_principal(principal)
    narrowed = tuple(check_scope(scope) for scope in scopes)
    if len(narrowed) > SCOPES_MAX:
        raise InvalidArgument(f"the key has {len(narrowed)} scopes; at most {SCOPES_MAX} are taken", field="scopes")
    if expires_at_ms and expires_at_ms <= now_ms:
        raise InvalidArgument(
            f"the key would have expired {(now_ms - expires_at_ms) / 1000:,.3f} s ago by the broker's clock",
            hint="Give a time to come; where it was one, it was too short, or the two clocks differ.",
            field="expires_at_ms",
        )
    if not 0 <= expires_at_ms < 2**53:
        raise InvalidArgument("expires_at_ms is no time in milliseconds since 1970", field="expires_at_ms")
    if len(description) > DESCRIPTION_CHARACTERS_MAX or not (description.isprintable()):
        raise InvalidArgument(f"a description is one line of at most {DESCRIPTION_CHARACTERS_MAX} characters", field="description")
    key_id, secret = id_bytes.hex(), secret_bytes.hex()
    text = f"{PREFIX}{key_id}_{secret}"
    key = ApiKey(
        key_id=key_id,
        principal=principal,
        secret_sha256=hash_secret(secret),
        created_at_ms=now_ms,
        created_by=created_by,
        description=description,
        expires_at_ms=expires_at_ms,
        scopes=narrowed,
        scram=tuple(
            credential_of_password(MECHANISMS[name], text.encode(), salt, ITERATIONS_MIN) for name, salt in (salts or {}).items()
        ),
    )
    return key, Secret(text)


def parse_key(text: str) -> Credential | None:
    """Parses a text of the form tlk_…; returns None for any other."""
    found = _TEXT.fullmatch(text)
    return None if found is None else Credential(found[1], Secret(found[2]))


def parse_basic(encoded: str) -> Credential | None:
    """Parses Basic credentials whose user is a key's id; the password is the secret or the whole key. None for any others."""
    try:
        user, _, password = base64.b64decode(encoded, validate=True).decode("ascii").partition(":")
    except ValueError:  # no Base64, no ASCII
        return None
    given = parse_key(password) or parse_key(f"{PREFIX}{user}_{password}")
    return given if given is not None and given.key_id == user else None


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def check_credential(key: ApiKey | None, shown: Credential, now_ms: int) -> ApiKey:
    """Returns `key` (the one of that id) if the secret matches and it is active. Raises Unauthenticated."""
    expected = key.secret_sha256 if key is not None else "0" * 64
    if not hmac.compare_digest(hash_secret(shown.secret.reveal()), expected) or key is None:
        raise Unauthenticated("the API key is not known here, or its secret is wrong")
    check_counts(key, now_ms)
    return key


def check_counts(key: ApiKey, now_ms: int) -> None:
    """Raises Unauthenticated for a key that was revoked or has expired. Call it only after the secret was checked."""
    state = key.state(now_ms)
    if state != "active":
        said = "was revoked" if state == "revoked" else "has expired"
        raise Unauthenticated(
            f"the API key {key.key_id} {said}", hint="Ask for a new one: tidelog key create PRINCIPAL", key_id=key.key_id
        )


def check_key_id(key_id: str) -> str:
    if not _KEY_ID.fullmatch(key_id):
        raise InvalidArgument("a key's id is of 16 hex digits", hint="It stands in the middle of tlk_ID_SECRET.", field="key_id")
    return key_id


def forgettable(keys: Iterable[ApiKey], now_ms: int) -> list[ApiKey]:
    """Returns the keys that ended FORGOTTEN_AFTER_MS ago or earlier."""
    return [key for key in keys if 0 < _ended_at_ms(key) <= now_ms - FORGOTTEN_AFTER_MS]


def _ended_at_ms(key: ApiKey) -> int:
    ends = [end_ms for end_ms in (key.revoked_at_ms, key.expires_at_ms) if end_ms]
    return min(ends) if ends else 0


_decoder = msgspec.json.Decoder(ApiKey)


def encode_key(key: ApiKey) -> bytes:
    return msgspec.json.encode(key)


def decode_key(kept: KeyValue) -> ApiKey:
    """Decodes a stored key. Raises Corrupt, naming the key of the store, and Rejected for a newer format version.

    A scope of an operation that only a newer version knows stays, so that the key is never wider than it was made.
    """
    try:
        key = _decoder.decode(kept.value)
        check_key_id(key.key_id)
        check_principal(key.principal)
        if not kept.key.endswith(f"/{key.key_id}") or not _DIGEST.fullmatch(key.secret_sha256):
            raise InvalidArgument("it is another's, or has no digest")
        for scope in key.scopes:
            check_stored_scope(scope)
        for credential in key.scram:
            check_scram_credential(credential)
    except (msgspec.DecodeError, UnicodeDecodeError, TidelogError) as error:
        raise Corrupt(f"the API key at {kept.key} can't be read: {error}", key=kept.key) from error
    if key.format_version > FORMAT_VERSION:
        raise Rejected(
            f"the API key at {kept.key} was written by a newer version of Tidelog (format {key.format_version})",
            hint="Upgrade this broker.",
        )
    return key
