"""The tokens by which brokers prove themselves to each other: what they bind, how long they hold, and who is refused."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.audit_log import AuditLog
from gateway.access.authentication import Authenticator
from gateway.access.authorization import AuthorizedCall, CallOrigin, begin, check_group
from gateway.access.bootstrap import peer_metadata, unchecked_metadata
from gateway.access.guard import AccessGuard
from gateway.access.peer_tokens import (
    ASSERTED,
    CLOCK_SKEW_MS_MAX,
    FORWARDED_BY,
    LIFETIME_MS,
    PEER_PRINCIPAL,
    PEER_TOKEN,
    PEER_UNCHECKED,
    REMEMBERED_MAX,
    REUSE_MS,
    CallMetadata,
    Entries,
    PeerClaim,
    PeerTokens,
    asserted_principal,
)
from gateway.access.permissions import FORWARDED_CALLS, GRPC_CALLS
from gateway.access.quotas import PrincipalQuotas
from gateway.access.settings import AccessSettings
from metadata.access.cache import AccessCache
from metadata.errors import NotAuthorized, TidelogError, Unauthenticated, Unavailable
from metadata.secret import Secret
from metadata.store.sqlite.store import SqliteStore

PRODUCE, SEEK, CREATE_KEY = "/tidelog.v1.Log/Produce", "/tidelog.v1.Groups/SeekGroup", "/tidelog.v1.Access/CreateKey"
BILLING: Entries = ((PEER_PRINCIPAL, "billing"),)


class World:
    """Two brokers of one cluster, each with a clock of its own."""

    def __init__(self, *, secret: str = "5e" * 32) -> None:
        self.one_ms = self.two_ms = 1_800_000_000_000
        self.secret = secret
        self.one = self.tokens("one", lambda: self.one_ms)
        self.two = self.tokens("two", lambda: self.two_ms)

    def tokens(self, broker_id: str, now_ms: object, *, cluster_id: str = "c", secret: str = "") -> PeerTokens:
        return PeerTokens(Secret(secret or self.secret), cluster_id=cluster_id, broker_id=broker_id, now_ms=now_ms)  # type: ignore[arg-type]

    def claim(self, method: str = PRODUCE, asserted: Entries = BILLING, *, called: str = "two") -> PeerClaim:
        """What broker one sends."""
        return sent("one", (*asserted, (PEER_TOKEN, self.one.sign(called, method, asserted))))


def sent(broker_id: str, metadata: CallMetadata) -> PeerClaim:
    """The claim as the called broker reads it from the metadata."""
    entries = dict(((FORWARDED_BY, broker_id), *metadata))
    token = entries.pop(PEER_TOKEN)
    assert entries.keys() <= ASSERTED
    return PeerClaim(token, tuple(sorted(entries.items())))


def test_a_broker_believes_another_of_its_cluster() -> None:
    world = World()
    claim = world.claim()
    for _ in range(2):
        world.two.check(claim, PRODUCE)
    assert (claim.broker_id, claim.principal, claim.is_unchecked) == ("one", "billing", False)
    assert world.secret not in claim.token


def test_the_secret_never_travels_and_neither_does_what_signs_with_it() -> None:
    world = World()
    assert world.secret not in repr(world.claim())
    assert world.one._key.hex() not in repr(world.claim())


@pytest.mark.parametrize(
    "asserted",
    [(), ((PEER_PRINCIPAL, "admin"),), (*BILLING, (PEER_UNCHECKED, "true")), ((PEER_PRINCIPAL, "billing"), (PEER_PRINCIPAL, "x"))],
)
def test_a_token_for_one_principal_is_no_token_for_another(asserted: Entries) -> None:
    world = World()
    forged = PeerClaim(world.claim().token, tuple(sorted((*asserted, (FORWARDED_BY, "one")))))
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            world.two.check(forged, PRODUCE)


def test_a_token_is_for_one_method_one_calling_broker_and_one_cluster() -> None:
    world = World()
    claim = world.claim()
    with pytest.raises(Unauthenticated):
        world.two.check(claim, SEEK)
    with pytest.raises(Unauthenticated):
        world.two.check(PeerClaim(claim.token, tuple(sorted((*BILLING, (FORWARDED_BY, "three"))))), PRODUCE)
    with pytest.raises(Unauthenticated):
        world.two.check(PeerClaim(claim.token, BILLING), PRODUCE)
    for cluster_id, secret in (("other", ""), ("c", "5f" * 32)):
        with pytest.raises(Unauthenticated):
            world.tokens("two", lambda: world.two_ms, cluster_id=cluster_id, secret=secret).check(claim, PRODUCE)


def test_a_call_that_reaches_another_broker_than_it_was_meant_for_is_refused_and_may_be_retried() -> None:
    world = World()
    with pytest.raises(Unavailable, match="called broker three, and reached broker two"):
        world.two.check(world.claim(called="three"), PRODUCE)


@given(text=st.text(max_size=200), at=st.integers(0, 120), put=st.sampled_from("0f:v19 "))
def test_a_token_that_is_malformed_or_changed_by_one_character_is_refused(text: str, at: int, put: str) -> None:
    world = World()
    claim = world.claim()
    changed = claim.token[:at] + put + claim.token[at + 1 :]
    for token in {text, "", changed} - {claim.token}:
        with pytest.raises(Unauthenticated):
            world.two.check(PeerClaim(token, claim.asserted), PRODUCE)
    world.two.check(claim, PRODUCE)


@pytest.mark.parametrize(
    ("age_ms", "holds"),
    [
        (-CLOCK_SKEW_MS_MAX - 1, False),
        (-CLOCK_SKEW_MS_MAX, True),
        (0, True),
        (LIFETIME_MS + CLOCK_SKEW_MS_MAX, True),
        (LIFETIME_MS + CLOCK_SKEW_MS_MAX + 1, False),
        (10**10, False),
    ],
)
@pytest.mark.parametrize("proven_before", [False, True])
def test_a_token_holds_for_its_lifetime_and_for_what_clocks_may_differ(age_ms: int, holds: bool, proven_before: bool) -> None:
    world = World()
    claim = world.claim()
    if proven_before:
        world.two.check(claim, PRODUCE)
    world.two_ms += age_ms
    if holds:
        world.two.check(claim, PRODUCE)
        return
    with pytest.raises(Unavailable, match="refused a call of broker one: its token was issued") as refused:
        world.two.check(claim, PRODUCE)
    assert "clocks" in refused.value.hint
    assert refused.value.retryable


def test_a_token_whose_time_was_changed_is_not_called_expired() -> None:
    world = World()
    claim = world.claim()
    later = claim.token.replace(str(world.one_ms), str(world.one_ms + LIFETIME_MS))
    world.two_ms += LIFETIME_MS * 10
    with pytest.raises(Unauthenticated):
        world.two.check(PeerClaim(later, claim.asserted), PRODUCE)


def test_a_token_is_used_again_for_some_seconds_and_never_older_than_the_clock() -> None:
    world = World()
    first = world.claim().token
    world.one_ms += REUSE_MS - 1
    assert world.claim().token == first
    assert world.claim(SEEK).token != first
    assert world.claim(called="three").token != first
    assert world.claim(asserted=()).token != first
    world.one_ms += 1
    second = world.claim().token
    assert second != first
    world.one_ms -= 1
    assert world.claim().token != second, "the clock was set back"


@pytest.mark.slow
def test_few_tokens_are_remembered() -> None:
    world = World()
    for number in range(REMEMBERED_MAX + 1):
        claim = world.claim(asserted=((PEER_PRINCIPAL, str(number)),))
        world.two.check(claim, PRODUCE)
    assert len(world.one._signed) == len(world.two._proven) == 1


@given(st.text(max_size=249))
def test_any_name_of_a_principal_can_be_asserted(principal: str) -> None:
    value = asserted_principal(principal.encode("utf-8", "replace").decode())
    assert value.isascii()
    assert value == value.strip()
    assert all(" " < character < "\x7f" for character in value)
    assert PeerClaim("", ((PEER_PRINCIPAL, value),)).principal == principal.encode("utf-8", "replace").decode()


def test_the_principal_of_the_present_call_goes_along_where_there_is_one() -> None:
    world = World()
    metadata, unchecked = peer_metadata(world.one), unchecked_metadata(world.one)

    def claim_as(principal: str) -> PeerClaim:
        begin(_Call(principal))  # type: ignore[arg-type]  # as much of a call as is looked at
        claim = sent("one", metadata("two", PRODUCE))
        world.two.check(claim, PRODUCE)
        return claim

    async def scenario() -> None:
        assert claim_as("").asserted == ((FORWARDED_BY, "one"),)
        assert claim_as("billing").principal == "billing"
        assert claim_as("Jürgen Groß").principal == "Jürgen Groß"
        claim = sent("one", unchecked("two", PRODUCE))
        world.two.check(claim, PRODUCE)
        assert (claim.is_unchecked, claim.principal) == (True, "")

    asyncio.run(scenario())


class _Call:
    caller = None

    def __init__(self, principal: str) -> None:
        self.principal = principal


def test_only_calls_that_brokers_forward_can_be_signed() -> None:
    assert GRPC_CALLS.keys() > FORWARDED_CALLS
    assert {path for path, needs in GRPC_CALLS.items() if needs.peer} < FORWARDED_CALLS
    with pytest.raises(AssertionError):
        World().one.sign("two", CREATE_KEY, ())


# At the guard


class Guarding:
    """A guard without listeners, and its audit log."""

    def __init__(self, folder: Path, peers: PeerTokens | None) -> None:
        self.store = SqliteStore(Path(":memory:"))
        self.cache = AccessCache(self.store)
        self.file = folder / "audit"
        self.audit = AuditLog(str(self.file), broker_id="two", now_ms=lambda: 0)
        authentication = Authenticator(AccessSettings(), self.cache, now_ms=lambda: 0)
        self.guard = AccessGuard(
            self.cache, authentication, PrincipalQuotas(self.cache, time.monotonic), self.audit, peers, now_ms=lambda: 0
        )

    def begin(self, claim: PeerClaim, method: str) -> AuthorizedCall:
        return self.guard.begin_forwarded(GRPC_CALLS[method], claim, CallOrigin("grpc", method, "10.0.0.1"))

    async def refused(self, claim: PeerClaim, method: str) -> TidelogError:
        with pytest.raises(TidelogError) as refused:
            self.begin(claim, method)
        return refused.value

    async def lines(self) -> list[dict[str, object]]:
        """Ends the audit log, and returns what it holds."""
        writing = asyncio.ensure_future(self.audit.run())
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait([writing])
        await self.store.close()
        return [json.loads(line) for line in self.file.read_text().splitlines()]


def test_the_audit_log_names_both_the_client_and_the_broker_that_forwarded_its_change(tmp_path: Path) -> None:
    world = World()

    async def scenario() -> None:
        at = Guarding(tmp_path, world.two)
        call = at.begin(world.claim(SEEK), SEEK)
        check_group("g")
        at.guard.ended(call, "")
        call = at.begin(world.claim(SEEK), SEEK)
        at.guard.ended(call, "GROUP_NOT_EMPTY")
        call = at.begin(world.claim(PRODUCE), PRODUCE)
        at.guard.ended(call, "")
        done, failed = await at.lines()
        assert done["resources"] == ["group:g"]
        for line, outcome in ((done, "ok"), (failed, "GROUP_NOT_EMPTY")):
            assert {name: line[name] for name in ("outcome", "principal", "credential", "forwarded_by", "broker", "call")} == {
                "outcome": outcome,
                "principal": "billing",
                "credential": "peer",
                "forwarded_by": "one",
                "broker": "two",
                "call": SEEK,
            }

    asyncio.run(scenario())


def test_a_broker_without_etcd_takes_no_forwarded_calls_whatever_they_show(tmp_path: Path) -> None:
    world = World()

    async def scenario() -> None:
        at = Guarding(tmp_path, None)
        for claim in (world.claim(), PeerClaim("", ()), PeerClaim(world.secret, ((FORWARDED_BY, "one"),))):
            refused = await at.refused(claim, PRODUCE)
            assert isinstance(refused, Unauthenticated)
            assert "without etcd" in refused.message
        assert [line["outcome"] for line in await at.lines()] == ["UNAUTHENTICATED"] * 3

    asyncio.run(scenario())


def test_the_secret_itself_proves_nothing(tmp_path: Path) -> None:
    world = World()

    async def scenario() -> None:
        at = Guarding(tmp_path, world.two)
        assert isinstance(await at.refused(PeerClaim(world.secret, ((FORWARDED_BY, "one"),)), PRODUCE), Unauthenticated)
        await at.lines()

    asyncio.run(scenario())


def test_even_who_knows_the_secret_can_not_have_keys_made_as_a_broker(tmp_path: Path) -> None:
    """Brokers never forward the administration of the cluster, so a token for it was not made by a broker."""
    world = World()

    async def scenario() -> None:
        at = Guarding(tmp_path, world.two)
        code = world.one._code(world.one_ms, "two", CREATE_KEY, ((FORWARDED_BY, "one"),))
        claim = PeerClaim(f"v1:{world.one_ms}:two:{code}", ((FORWARDED_BY, "one"),))
        world.two.check(claim, CREATE_KEY)
        assert isinstance(await at.refused(claim, CREATE_KEY), NotAuthorized)
        (line,) = await at.lines()
        assert (line["outcome"], line["call"]) == ("PERMISSION_DENIED", CREATE_KEY)

    asyncio.run(scenario())


def test_clocks_that_differ_too_much_are_named_in_the_log_once_a_minute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    world = World()

    async def scenario() -> None:
        at = Guarding(tmp_path, world.two)
        world.two_ms += 3_600_000
        for _ in range(3):
            assert isinstance(await at.refused(world.claim(), PRODUCE), Unavailable)
        await at.lines()

    asyncio.run(scenario())
    (warning,) = caplog.messages
    assert "broker=one" in warning
    assert "issued 3600.0 s ago" in warning
    assert "NTP" in warning
