"""Signs and checks the short-lived tokens by which brokers of one cluster prove themselves to each other. Pure.

Each call between brokers carries one token, and the assertions of the calling broker, as metadata:

    tidelog-peer           v1:{issued at, ms since 1970}:{id of the called broker}:{HMAC-SHA256, hex}
    tidelog-forwarded-by   id of the calling broker
    tidelog-principal      principal that the calling broker has authenticated, percent-encoded
    tidelog-key            id of the API key that the calling broker has authenticated
    tidelog-unchecked      the calling broker runs without authentication

    HMAC key    HMAC-SHA256(peer secret, "tidelog peer token v1" and the cluster id)
    HMAC input  the first three fields of the token, the method, and all asserted entries; each with its length before it

The peer secret never leaves the broker. A token that is read from the wire permits calls of one method to one broker for one
principal, until it expires. The clocks of both brokers matter: a token is accepted from CLOCK_SKEW_MS_MAX before its issue until
LIFETIME_MS and CLOCK_SKEW_MS_MAX after it. Invariant: errors name times or the called broker only where the HMAC is valid.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from gateway.access.permissions import FORWARDED_CALLS
from metadata.errors import Unauthenticated, Unavailable
from metadata.secret import Secret

CallMetadata = tuple[tuple[str, str], ...]
# From the id of the called broker and the method, /service/name.
PeerMetadata = Callable[[str, str], CallMetadata]

# Keys of the metadata between brokers. FORWARDED_BY is sent without authentication too.
PEER_TOKEN: Final = "tidelog-peer"
FORWARDED_BY: Final = "tidelog-forwarded-by"
PEER_PRINCIPAL: Final = "tidelog-principal"
PEER_UNCHECKED: Final = "tidelog-unchecked"
PEER_KEY: Final = "tidelog-key"
# Entries that the token covers. A new assertion of one broker to another belongs here.
ASSERTED: Final = frozenset({FORWARDED_BY, PEER_PRINCIPAL, PEER_UNCHECKED, PEER_KEY})

# How long after its issue a token is accepted where both clocks agree: longer than a call waits to be taken up.
LIFETIME_MS: Final = 30_000
# By how much the clocks of two brokers may differ.
CLOCK_SKEW_MS_MAX: Final = 60_000
# A token is used again for this long, so that a call costs no HMAC.
REUSE_MS: Final = 5_000
# Signed and verified tokens that are cached.
REMEMBERED_MAX: Final = 10_000
PRINCIPAL_CHARACTERS_MAX: Final = 249

# Printable ASCII without the space, which HTTP/2 may strip, and the percent sign.
_PLAIN: Final = frozenset(map(chr, range(0x21, 0x7F))) - {"%"}
_TOKEN: Final = re.compile(r"v1:([0-9]{1,15}):([A-Za-z0-9._-]{1,249}):([0-9a-f]{64})", re.ASCII)
_KEY_PURPOSE: Final = b"tidelog peer token v1"

Entries = tuple[tuple[str, str], ...]


class PeerClaim(NamedTuple):
    """Holds the token and the assertions that a call from another broker carries."""

    token: str
    asserted: Entries

    def value(self, name: str) -> str:
        """Returns the asserted value; empty where there is none."""
        return next((value for key, value in self.asserted if key == name), "")

    @property
    def broker_id(self) -> str:
        return self.value(FORWARDED_BY)

    @property
    def principal(self) -> str:
        return unquote(self.value(PEER_PRINCIPAL))[:PRINCIPAL_CHARACTERS_MAX]

    @property
    def is_unchecked(self) -> bool:
        return bool(self.value(PEER_UNCHECKED))


def asserted_principal(principal: str) -> str:
    """Encodes a principal as an ASCII value of gRPC metadata; PeerClaim.principal decodes it."""
    return principal if _PLAIN.issuperset(principal) else quote(principal, safe="")


class PeerTokens:
    """Signs the calls of one broker, and checks calls from others; both results are cached."""

    def __init__(self, secret: Secret, *, cluster_id: str, broker_id: str, now_ms: Callable[[], int]) -> None:
        self._key = hmac.digest(secret.reveal().encode(), _framed((_KEY_PURPOSE, cluster_id.encode())), "sha256")
        self._broker_id = broker_id
        self._now_ms = now_ms
        self._signed: dict[tuple[str, str, Entries], tuple[str, int]] = {}
        self._proven: dict[tuple[str, str, Entries], tuple[int, str]] = {}

    def sign(self, called: str, method: str, asserted: Entries) -> str:
        """Returns a token for calls of `method` to the broker `called`; it covers `asserted` and FORWARDED_BY."""
        assert method in FORWARDED_CALLS, f"{method} is not in FORWARDED_CALLS: the other broker would refuse it"
        now_ms = self._now_ms()
        wanted = (called, method, asserted)
        token, issued_ms = self._signed.get(wanted, ("", 0))
        if token and 0 <= now_ms - issued_ms < REUSE_MS:
            return token
        code = self._code(now_ms, called, method, (*asserted, (FORWARDED_BY, self._broker_id)))
        if len(self._signed) >= REMEMBERED_MAX:
            self._signed.clear()
        token = f"v1:{now_ms}:{called}:{code}"
        self._signed[wanted] = token, now_ms
        return token

    def check(self, claim: PeerClaim, method: str) -> None:
        """Raises Unauthenticated unless a broker of this cluster has signed the claim for this method.

        Raises Unavailable, which clients retry, where the signature is valid, but the clocks differ too much or the token names
        another broker.
        """
        shown = (claim.token, method, claim.asserted)
        proven = self._proven.get(shown)
        if proven is None:
            proven = self._verified(claim, method)
            if len(self._proven) >= REMEMBERED_MAX:
                self._proven.clear()
            self._proven[shown] = proven
        issued_ms, called = proven
        age_ms = self._now_ms() - issued_ms
        if not -CLOCK_SKEW_MS_MAX <= age_ms <= LIFETIME_MS + CLOCK_SKEW_MS_MAX:
            when = f"{age_ms / 1000:.1f} s ago" if age_ms > 0 else f"{-age_ms / 1000:.1f} s in the future"
            raise Unavailable(
                f"broker {self._broker_id} refused a call of broker {claim.broker_id}: its token was issued {when}",
                hint=f"Synchronize the clocks of the brokers (NTP): they may differ by {CLOCK_SKEW_MS_MAX // 1000} s.",
                broker_id=claim.broker_id,
            )
        if called != self._broker_id:
            raise Unavailable(
                f"broker {claim.broker_id} called broker {called}, and reached broker {self._broker_id}",
                hint="Retry. If it persists, check that each broker has an address of its own (advertise_grpc).",
                broker_id=claim.broker_id,
            )

    def _verified(self, claim: PeerClaim, method: str) -> tuple[int, str]:
        """Returns the time of issue (ms since 1970) and the called broker of a token. Raises Unauthenticated."""
        found = _TOKEN.fullmatch(claim.token)
        if found is None:
            raise _not_a_broker()
        issued_ms, called = int(found[1]), found[2]
        if not hmac.compare_digest(self._code(issued_ms, called, method, claim.asserted), found[3]):
            raise _not_a_broker()
        return issued_ms, called

    def _code(self, issued_ms: int, called: str, method: str, asserted: Entries) -> str:
        signed = ["v1", str(issued_ms), called, method, *(text for entry in sorted(asserted) for text in entry)]
        return hmac.new(self._key, _framed(text.encode("utf-8", "surrogatepass") for text in signed), "sha256").hexdigest()


def _framed(parts: Iterable[bytes]) -> bytes:
    """Joins the parts, each after its length, so that no two lists of parts have equal bytes."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _not_a_broker() -> Unauthenticated:
    return Unauthenticated(
        "only brokers of this cluster may forward calls",
        hint="A broker needs the same etcd, and authentication or else TLS. A client must not send tidelog-… metadata.",
    )
