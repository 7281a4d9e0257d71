"""Derives and stores the keys by which a broker checks SCRAM clients: never the password, nor anything that replaces it. Pure.

    password ─ PBKDF2(salt, iterations) ─▶ SaltedPassword ─ HMAC("Client Key") ─▶ ClientKey ─ hash ─▶ StoredKey
                                                          └ HMAC("Server Key") ─▶ ServerKey

The value of /{cluster}/scram/{user}, JSON in UTF-8:

    {"format_version":1,"user":"alice","credentials":[{"mechanism":"SCRAM-SHA-256","salt":"…hex…","iterations":4096,
     "stored_key":"…hex…","server_key":"…hex…"}]}

StoredKey and ServerKey let their holder act as the broker, not as the client. A short password can be guessed from them, so no
snapshot on the bucket contains the records of users. An API key has 256 random bits, too many to guess.

Sources: RFC 5802 §3, RFC 7677, KIP-84, KIP-554
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final, NamedTuple

import msgspec

from metadata.access.acl import check_principal
from metadata.access.quota import quoted_principal
from metadata.errors import Corrupt, InvalidArgument, Rejected, TidelogError
from metadata.store.interface import KeyValue

FORMAT_VERSION: Final = 1
ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
SALT_BYTES: Final = 16
SALT_BYTES_MAX: Final = 256
# Most users of one cluster: every broker holds them all.
SCRAM_USERS_MAX: Final = 10_000


class ScramMechanism(NamedTuple):
    """A SCRAM mechanism, with its number in Kafka's protocol and its hash."""

    name: str
    number: int
    hash_name: str
    digest_bytes: int


SHA_256: Final = ScramMechanism("SCRAM-SHA-256", 1, "sha256", 32)
SHA_512: Final = ScramMechanism("SCRAM-SHA-512", 2, "sha512", 64)
MECHANISMS: Final = {each.name: each for each in (SHA_256, SHA_512)}
MECHANISM_NUMBERS: Final = {each.number: each for each in MECHANISMS.values()}


class ScramCredential(msgspec.Struct, frozen=True):
    """The stored keys of one password for one mechanism, with salt and iterations. Byte fields are hex digits."""

    mechanism: str
    salt: str
    iterations: int
    stored_key: str
    server_key: str


class ScramUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user that AlterUserScramCredentials has created; its principal has the same name."""

    user: str
    credentials: tuple[ScramCredential, ...]
    format_version: int = FORMAT_VERSION


def credential_of_password(mechanism: ScramMechanism, password: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Returns the credential to store for a password. Takes milliseconds of CPU."""
    return credential_of_salted(mechanism, hashlib.pbkdf2_hmac(mechanism.hash_name, password, salt, iterations), salt, iterations)


def credential_of_salted(mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Returns the credential to store for a password that the client has salted itself."""
    client_key = hmac.digest(salted_password, b"Client Key", mechanism.hash_name)
    stored_key = hashlib.new(mechanism.hash_name, client_key).digest()
    server_key = hmac.digest(salted_password, b"Server Key", mechanism.hash_name)
    return ScramCredential(mechanism.name, salt.hex(), iterations, stored_key.hex(), server_key.hex())


def find_credential(credentials: tuple[ScramCredential, ...], mechanism: str) -> ScramCredential | None:
    """Returns the credential for a mechanism; None if there is none."""
    return next((each for each in credentials if each.mechanism == mechanism), None)


def check_scram_credential(credential: ScramCredential) -> ScramCredential:
    """Returns the credential. Raises InvalidArgument if its fields have wrong lengths or values."""
    mechanism = MECHANISMS.get(credential.mechanism)
    if mechanism is None:
        raise InvalidArgument(f"there is no mechanism {credential.mechanism[:40]!r}")
    try:
        salt, *keys = (bytes.fromhex(each) for each in (credential.salt, credential.stored_key, credential.server_key))
    except ValueError:
        raise InvalidArgument("a credential holds something else than hex digits") from None
    if not 0 < len(salt) <= SALT_BYTES_MAX or any(len(key) != mechanism.digest_bytes for key in keys):
        raise InvalidArgument("a salt or a key has a wrong length")
    if not ITERATIONS_MIN <= credential.iterations <= ITERATIONS_MAX:
        raise InvalidArgument(f"the iterations are {credential.iterations}; {ITERATIONS_MIN} to {ITERATIONS_MAX} are taken")
    return credential


_decoder = msgspec.json.Decoder(ScramUser)


def encode_scram_user(user: ScramUser) -> bytes:
    """Returns the value of the store."""
    return msgspec.json.encode(user)


def decode_scram_user(kept: KeyValue) -> ScramUser:
    """Decodes a value of the store. Raises Corrupt, which names the key, for anything that this module does not write."""
    try:
        user = _decoder.decode(kept.value)
        check_principal(user.user)
        if not kept.key.endswith(f"/{quoted_principal(user.user)}"):
            raise InvalidArgument("it is another's")
        for credential in user.credentials:
            check_scram_credential(credential)
    except (msgspec.DecodeError, UnicodeDecodeError, TidelogError) as error:
        raise Corrupt(f"the SCRAM user at {kept.key} can't be read: {error}", key=kept.key) from error
    if user.format_version > FORMAT_VERSION:
        raise Rejected(
            f"the SCRAM user at {kept.key} was written by a newer version of Tidelog (format {user.format_version})",
            hint="Upgrade this broker.",
        )
    return user
