"""Implements the broker's half of a SCRAM exchange. Pure: the caller brings the nonce, and the credential of the user.

    client                                              broker
    n,,n=user,r=nonce                              ─▶   first() ─▶ the user's name
                                                   ◀─   challenge(credential): r=nonce+ours,s=salt,i=iterations
    c=biws,r=nonce+ours,p=proof                    ─▶   final()
                                                   ◀─   v=signature

Kafka's clients use no channel binding, and the extension `tokenauth` asks for a delegation token, which Tidelog does not have.

Invariant: final() returns only where the client has proved that it knows the password. An unknown user gets a challenge of the
same form, with a salt that is the same each time.

Sources: RFC 5802, RFC 7677, KIP-84
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Final

from metadata.access.scram import ITERATIONS_MIN, SALT_BYTES, ScramCredential, ScramMechanism
from metadata.errors import Unauthenticated

NONCE_BYTES: Final = 24
# Longest nonce of a client; known clients send 24 to 44 characters.
CLIENT_NONCE_CHARACTERS_MAX: Final = 256
NAME_CHARACTERS_MAX: Final = 1_024
_FIRST: Final = re.compile(
    r"n,(?:a=(?P<authzid>[^,\0]*))?,(?P<bare>n=(?P<name>[^,\0]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?P<extensions>(?:,[A-Za-z]+=[^,\0]+)*))"
)
_FINAL: Final = re.compile(
    r"(?P<without_proof>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]+=[^,\0]+)*),p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_NAME: Final = re.compile(r"(?:[^=]|=2C|=3D)+")


class ScramExchange:
    """The state of one SCRAM exchange: `first`, then `challenge`, then `final`; it is used once."""

    __slots__ = ("_auth_message", "_bare", "_binding", "_client_nonce", "_credential", "_is_known", "_nonce", "mechanism")

    def __init__(self, mechanism: ScramMechanism, nonce: str) -> None:
        """`nonce`: random, of printable ASCII characters without commas."""
        self.mechanism = mechanism
        self._nonce = nonce
        self._credential: ScramCredential | None = None
        self._is_known = False

    def first(self, message: bytes) -> str:
        """Takes the client's first message. Returns the name of the user. Raises Unauthenticated."""
        found = _FIRST.fullmatch(_text(message))
        if found is None:
            raise Unauthenticated("the client's first SCRAM message is malformed")
        if len(found["nonce"]) > CLIENT_NONCE_CHARACTERS_MAX or len(found["name"]) > NAME_CHARACTERS_MAX:
            raise Unauthenticated("the client's first SCRAM message is too long")
        if any(extension.partition("=")[0] in {"tokenauth", "m"} for extension in found["extensions"].split(",")):
            raise Unauthenticated("the client asks for a SCRAM extension that there is not, such as delegation tokens")
        name = _name(found["name"])
        if found["authzid"] and _name(found["authzid"]) != name:
            raise Unauthenticated("the client asks for another identity than its username")
        self._bare, self._client_nonce = found["bare"], found["nonce"]
        self._binding = base64.b64encode(message[: len(message) - len(self._bare.encode())]).decode("ascii")
        return name

    def challenge(self, credential: ScramCredential | None, unknown_salt: bytes) -> bytes:
        """Returns the broker's first message. `unknown_salt` is shown for a user without a credential."""
        self._is_known = credential is not None
        if credential is None:
            no_key = bytes(self.mechanism.digest_bytes).hex()
            credential = ScramCredential(
                self.mechanism.name, unknown_salt[:SALT_BYTES].hex(), ITERATIONS_MIN, stored_key=no_key, server_key=no_key
            )
        self._credential = credential
        salt = base64.b64encode(bytes.fromhex(credential.salt)).decode("ascii")
        message = f"r={self._client_nonce}{self._nonce},s={salt},i={credential.iterations}"
        self._auth_message = f"{self._bare},{message}"
        return message.encode("ascii")

    def final(self, message: bytes) -> bytes:
        """Takes the client's proof. Returns the broker's last message. Raises Unauthenticated."""
        assert self._credential is not None
        found = _FINAL.fullmatch(_text(message))
        if found is None:
            raise Unauthenticated("the client's final SCRAM message is malformed")
        if found["nonce"] != self._client_nonce + self._nonce or found["binding"] != self._binding:
            raise Unauthenticated("the client's final SCRAM message belongs to another exchange")
        try:
            proof = base64.b64decode(found["proof"], validate=True)
        except ValueError:
            raise Unauthenticated("the client's proof is no Base64") from None
        if base64.b64encode(proof).decode("ascii") != found["proof"]:  # the decoder overlooks bits behind the last byte
            raise Unauthenticated("the client's proof is no Base64")
        hash_name = self.mechanism.hash_name
        auth_message = f"{self._auth_message},{found['without_proof']}".encode()
        stored_key = bytes.fromhex(self._credential.stored_key)
        signature = hmac.digest(stored_key, auth_message, hash_name)
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=False))
        is_right = hmac.compare_digest(hashlib.new(hash_name, client_key).digest(), stored_key)
        if not is_right or len(proof) != len(signature) or not self._is_known:
            raise Unauthenticated("the password is wrong, or the user has no SCRAM credentials")
        verifier = hmac.digest(bytes.fromhex(self._credential.server_key), auth_message, hash_name)
        return b"v=" + base64.b64encode(verifier)


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise Unauthenticated("the SCRAM message is not UTF-8") from None


def _name(escaped: str) -> str:
    if not _NAME.fullmatch(escaped):
        raise Unauthenticated("the username of the SCRAM message is escaped wrongly")
    return escaped.replace("=2C", ",").replace("=3D", "=")
