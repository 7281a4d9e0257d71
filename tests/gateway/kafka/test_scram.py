"""The broker's half of SCRAM follows RFC 7677, and lets in only clients that know the password."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.kafka.access.scram import ScramExchange
from metadata.access.scram import ITERATIONS_MIN, MECHANISMS, SHA_256, ScramMechanism, credential_of_password
from metadata.errors import Unauthenticated

UNKNOWN_SALT = bytes(range(32))
CREDENTIALS = {each.name: credential_of_password(each, b"pencil", bytes(range(16)), ITERATIONS_MIN) for each in MECHANISMS.values()}
# The start of an exchange that the client has begun with the nonce abc.
FIRST = b"n,,n=user,r=abc"


def client_final(mechanism: ScramMechanism, password: bytes, first: bytes, challenge: bytes, binding: bytes = b"n,,") -> bytes:
    """What a client answers to a challenge, written from the RFC."""
    fields = dict(field.split("=", 1) for field in challenge.decode().split(","))
    salted = hashlib.pbkdf2_hmac(mechanism.hash_name, password, base64.b64decode(fields["s"]), int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", mechanism.hash_name)
    without_proof = b"c=" + base64.b64encode(binding) + b",r=" + fields["r"].encode()
    auth_message = b",".join([first[len(binding) :], challenge, without_proof])
    signature = hmac.digest(hashlib.new(mechanism.hash_name, client_key).digest(), auth_message, mechanism.hash_name)
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    return without_proof + b",p=" + base64.b64encode(proof)


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    exchange = ScramExchange(SHA_256, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert exchange.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == "user"
    challenge = exchange.challenge(credential_of_password(SHA_256, b"pencil", salt, 4096), UNKNOWN_SALT)
    assert challenge == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert exchange.final(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS)
def test_the_password_and_no_other_is_right(mechanism: ScramMechanism) -> None:
    for password, is_right in ((b"pencil", True), (b"pencils", False), (b"", False)):
        exchange = ScramExchange(mechanism, "nonce")
        exchange.first(FIRST)
        challenge = exchange.challenge(CREDENTIALS[mechanism.name], UNKNOWN_SALT)
        final = client_final(mechanism, password, FIRST, challenge)
        if is_right:
            assert exchange.final(final).startswith(b"v=")
        else:
            with pytest.raises(Unauthenticated):
                exchange.final(final)


def test_an_unknown_user_gets_the_same_challenge_each_time_and_never_gets_in() -> None:
    salts = set()
    for password in (b"", b"pencil", bytes(32)):
        exchange = ScramExchange(SHA_256, "nonce")
        exchange.first(FIRST)
        challenge = exchange.challenge(None, UNKNOWN_SALT)
        salts.add(challenge)
        with pytest.raises(Unauthenticated):
            exchange.final(client_final(SHA_256, password, FIRST, challenge))
    [challenge] = salts
    known = ScramExchange(SHA_256, "nonce")
    known.first(FIRST)
    assert len(challenge) == len(known.challenge(CREDENTIALS["SCRAM-SHA-256"], UNKNOWN_SALT))


def test_a_proof_without_a_stored_key_is_refused_where_the_zeros_are_guessed() -> None:
    """Who takes the made-up keys of an unknown user for its own proves nothing."""
    exchange = ScramExchange(SHA_256, "nonce")
    exchange.first(FIRST)
    challenge = exchange.challenge(None, UNKNOWN_SALT)
    without_proof = b"c=biws,r=abcnonce"
    signature = hmac.digest(bytes(32), b",".join([FIRST[3:], challenge, without_proof]), "sha256")
    with pytest.raises(Unauthenticated):
        exchange.final(without_proof + b",p=" + base64.b64encode(signature))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0" * 40,
        b"\xff\xfe",
        b"y,,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,r=abc,n=user",
        b"n,,n=us=er,r=abc",
        b"n,,n=user,r=abc\0",
        b"n,,n=user,r=a b",
        b"n,,n=user,r=abc,tokenauth=true",
        b"n,,m=ext,n=user,r=abc",
        b"n,a=root,n=user,r=abc",
        b"n,,n=user,r=" + b"a" * 1000,
        b"n,,n=" + b"u" * 10_000 + b",r=abc",
    ],
)
def test_first_messages_that_are_refused(message: bytes) -> None:
    with pytest.raises(Unauthenticated):
        ScramExchange(SHA_256, "nonce").first(message)


def test_names_are_unescaped() -> None:
    assert ScramExchange(SHA_256, "nonce").first(b"n,,n=a=2Cb=3Dc,r=abc") == "a,b=c"
    assert ScramExchange(SHA_256, "nonce").first("n,,n=Jürgen,r=abc".encode()) == "Jürgen"
    assert ScramExchange(SHA_256, "nonce").first(b"n,a=user,n=user,r=abc,x=1") == "user"


@given(cut=st.integers(0, 200), byte=st.integers(0, 255), garbage=st.binary(max_size=300))
def test_no_changed_final_message_gets_in(cut: int, byte: int, garbage: bytes) -> None:
    exchange = ScramExchange(SHA_256, "nonce")
    exchange.first(FIRST)
    challenge = exchange.challenge(CREDENTIALS["SCRAM-SHA-256"], UNKNOWN_SALT)
    right = client_final(SHA_256, b"pencil", FIRST, challenge)
    changed = bytearray(right)
    changed[cut % len(right)] = byte
    for message in (bytes(changed), right[: cut % len(right)], garbage, right + b"\0"):
        if message != right:
            with pytest.raises(Unauthenticated):
                exchange.final(message)


@given(message=st.binary(max_size=400))
def test_no_first_message_raises_anything_else(message: bytes) -> None:
    with contextlib.suppress(Unauthenticated):
        ScramExchange(SHA_256, "nonce").first(message)
