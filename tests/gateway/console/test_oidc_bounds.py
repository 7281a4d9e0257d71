"""Tests the bounds on requests to the OpenID provider that anonymous clients cause by sign-ins at the console."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from gateway.access.oidc import is_safe_url
from gateway.console.exchange_slots import (
    EXCHANGES_MAX,
    PER_ADDRESS_MAX,
    PER_READER_MAX,
    UNKNOWN_MAX,
    AllTaken,
    ExchangeSlots,
)
from gateway.console.oidc_sign_in import (
    ENDPOINTS_AGE_S,
    FAILURE_AGE_S,
    FLOW_MS,
    KNOWN_MS,
    Flow,
    KnownReader,
    OidcClient,
    OidcSignIn,
    SignInRefused,
    Tokens,
)
from gateway.console.page import link
from gateway.console.session_cookie import CookieSealer
from metadata.secret import Secret
from tests.simulation.virtual_loop import run as run_virtually

NOW_MS = 1_750_000_000_000
ISSUER = "https://provider.example"
ABOUT = {"issuer": ISSUER, "authorization_endpoint": f"{ISSUER}/authorize", "token_endpoint": f"{ISSUER}/token"}
CLIENT = OidcClient(ISSUER, "console", None, "https://console.example/console/oidc/callback", "openid")
SEALER = CookieSealer(Secret("a secret of the cluster"), os.urandom, purpose=b"sign-in")
KNOWN = CookieSealer(Secret("a secret of the cluster"), os.urandom, purpose=b"known")


class Provider:
    """Answers when a test lets it, and counts what it is asked."""

    def __init__(self) -> None:
        self.discoveries = self.exchanges = 0
        self.is_down = False
        self.answers = asyncio.Event()

    async def fetch(self, url: str) -> bytes:
        self.discoveries += 1
        await self.answers.wait()
        if self.is_down:
            raise OSError("refused")
        return msgspec.json.encode(ABOUT)

    async def post(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> tuple[int, bytes]:
        self.exchanges += 1
        await self.answers.wait()
        return 400, b'{"error":"invalid_grant"}'

    def sign_in(self) -> OidcSignIn:
        return OidcSignIn(CLIENT, SEALER, os.urandom, known=KNOWN, fetch=self.fetch, post=self.post)


def with_provider(scenario: Callable[[Provider, OidcSignIn], Awaitable[None]]) -> None:
    async def whole() -> None:
        provider = Provider()
        await scenario(provider, provider.sign_in())

    run_virtually(whole())


async def begun(sign_in: OidcSignIn) -> tuple[Flow, dict[str, str]]:
    """Returns a flow, and the query of an invented answer to it."""
    location, cookie = await sign_in.begin("/console/cluster", now_ms=NOW_MS)
    flow = sign_in.opened(cookie, now_ms=NOW_MS)
    assert flow is not None
    return flow, {"state": parse_qs(urlsplit(location).query)["state"][0], "code": "X"}


async def turns() -> None:
    """Lets all tasks run until they wait."""
    await asyncio.sleep(0.001)


def test_a_state_that_is_presented_any_number_of_times_causes_a_bounded_number_of_exchanges() -> None:
    async def scenario(provider: Provider, sign_in: OidcSignIn) -> None:
        provider.answers.set()
        flow, query = await begun(sign_in)
        provider.answers.clear()
        async with asyncio.TaskGroup() as tasks:
            held = [tasks.create_task(refused(sign_in, flow, query, address=f"198.51.100.{n}")) for n in range(UNKNOWN_MAX)]
            await turns()
            for _ in range(100):
                error = await refused(sign_in, flow, query)
                assert error.status == 503
                assert "Load this page again in a few seconds" in str(error)
            assert provider.exchanges == UNKNOWN_MAX
            held[0].cancel()
            await turns()
            tasks.create_task(refused(sign_in, flow, query))
            await turns()
            assert provider.exchanges == UNKNOWN_MAX + 1, "a reader who left gives the place back"
            provider.answers.set()
        assert {each.result().status for each in held[1:]} == {403}
        assert "refused the code: invalid_grant" in str(await refused(sign_in, flow, query))

    with_provider(scenario)


async def refused(
    sign_in: OidcSignIn, flow: Flow, query: Mapping[str, str], *, address: str = "", reader: str = ""
) -> SignInRefused:
    with pytest.raises(SignInRefused) as caught:
        await sign_in.end(flow, query, address=address, reader=reader)
    return caught.value


def test_unknown_readers_of_all_addresses_leave_room_for_those_who_have_signed_in_before() -> None:
    async def scenario(provider: Provider, sign_in: OidcSignIn) -> None:
        provider.answers.set()
        flow, query = await begun(sign_in)
        provider.answers.clear()
        cookie = sign_in.known_cookie(Tokens("", "", "ann"), now_ms=NOW_MS)
        reader = sign_in.known_reader(cookie, now_ms=NOW_MS)
        assert reader
        async with asyncio.TaskGroup() as tasks:
            for number in range(10 * EXCHANGES_MAX):
                tasks.create_task(refused(sign_in, flow, query, address=f"198.51.100.{number}"))
            await turns()
            assert provider.exchanges == UNKNOWN_MAX
            tasks.create_task(refused(sign_in, flow, query, address="198.51.100.1", reader=reader))
            await turns()
            assert provider.exchanges == UNKNOWN_MAX + 1, "a known reader is let in behind the same address"
            provider.answers.set()

    with_provider(scenario)


def test_a_browser_is_known_by_a_sealed_cookie_alone_and_for_a_while() -> None:
    sign_in = Provider().sign_in()
    cookie = sign_in.known_cookie(Tokens("", "", "ann"), now_ms=NOW_MS)
    assert sign_in.known_reader(cookie, now_ms=NOW_MS) == sign_in.known_reader(
        sign_in.known_cookie(Tokens("", "", "ann"), now_ms=NOW_MS), now_ms=NOW_MS
    ), "a reader has one name, however many cookies"
    assert sign_in.known_reader(cookie, now_ms=NOW_MS + KNOWN_MS) == ""
    assert "ann" not in str(KNOWN.open(cookie, KnownReader, now_ms=NOW_MS))
    forged = SEALER.seal(KnownReader(reader="ann", expires_at_ms=NOW_MS + KNOWN_MS))
    assert sign_in.known_reader(forged, now_ms=NOW_MS) == "", "a cookie of another purpose"
    assert sign_in.known_reader("", now_ms=NOW_MS) == ""


@pytest.mark.parametrize(
    ("addresses", "slots"),
    [
        (["203.0.113.7"], PER_ADDRESS_MAX),
        (["203.0.113.7", "::ffff:203.0.113.7"], PER_ADDRESS_MAX),
        (["2001:db8::1", "2001:db8::2", "2001:db8:0:0:ffff::3"], PER_ADDRESS_MAX),
        (["2001:db8::1", "2001:db8:0:1::1"], 2 * PER_ADDRESS_MAX),
        (["fe80::1%eth0", "fe80::2%eth1"], PER_ADDRESS_MAX),
        ([""], PER_ADDRESS_MAX),
        (["a socket", "another"], 2 * PER_ADDRESS_MAX),
    ],
)
def test_unknown_readers_of_one_network_share_slots(addresses: list[str], slots: int) -> None:
    held = ExchangeSlots()
    with ExitStack() as taken:
        count = 0
        for number in range(10 * EXCHANGES_MAX):
            try:
                taken.enter_context(held.taken(address=addresses[number % len(addresses)], reader=""))
                count += 1
            except AllTaken:
                continue
        assert count == min(slots, UNKNOWN_MAX)
    with ExitStack() as taken:
        for _ in range(PER_ADDRESS_MAX):
            taken.enter_context(held.taken(address=addresses[0], reader=""))


def test_known_readers_share_what_unknown_ones_leave_and_none_takes_all_of_it() -> None:
    held = ExchangeSlots()
    with ExitStack() as taken:
        for number in range(EXCHANGES_MAX - UNKNOWN_MAX):
            taken.enter_context(held.taken(address="203.0.113.7", reader=f"reader {number // PER_READER_MAX}"))
        for _ in range(PER_ADDRESS_MAX):  # one who signs in again and again counts as a stranger
            taken.enter_context(held.taken(address="203.0.113.7", reader="reader 0"))
        with pytest.raises(AllTaken):
            taken.enter_context(held.taken(address="203.0.113.7", reader="reader 0"))
        for number in range(UNKNOWN_MAX - PER_ADDRESS_MAX):
            taken.enter_context(held.taken(address="203.0.113.7", reader=f"another {number}"))
        with pytest.raises(AllTaken):
            taken.enter_context(held.taken(address="198.51.100.1", reader="the last"))


def test_callers_share_a_discovery_and_the_cancellation_of_one_does_not_end_it() -> None:
    async def scenario(provider: Provider, sign_in: OidcSignIn) -> None:
        async with asyncio.TaskGroup() as tasks:
            callers = [tasks.create_task(sign_in.begin("/console", now_ms=NOW_MS)) for _ in range(50)]
            await turns()
            for caller in callers[:10]:  # the first of them began the discovery
                caller.cancel()
            await turns()
            assert not any(caller.done() for caller in callers[10:])
            provider.answers.set()
        assert all(caller.result()[0].startswith(f"{ISSUER}/authorize?") for caller in callers[10:])
        assert provider.discoveries == 1
        await asyncio.sleep(ENDPOINTS_AGE_S)
        await begun(sign_in)
        assert provider.discoveries == 2

    with_provider(scenario)


def test_a_discovery_ends_with_its_last_caller_and_the_next_begins_another() -> None:
    async def scenario(provider: Provider, sign_in: OidcSignIn) -> None:
        caller = asyncio.create_task(sign_in.begin("/console", now_ms=NOW_MS))
        await turns()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await turns()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        provider.answers.set()
        await begun(sign_in)
        assert provider.discoveries == 2

    with_provider(scenario)


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_failed_discovery_is_remembered_for_a_while(is_silent: bool) -> None:
    async def scenario(provider: Provider, sign_in: OidcSignIn) -> None:
        provider.is_down = True
        if not is_silent:
            provider.answers.set()
        for _ in range(20):
            with pytest.raises(SignInRefused, match="does not answer"):
                await sign_in.begin("/console", now_ms=NOW_MS)
        assert provider.discoveries == 1
        provider.is_down = False
        provider.answers.set()
        await asyncio.sleep(FAILURE_AGE_S)
        await begun(sign_in)
        assert provider.discoveries == 2

    with_provider(scenario)


def test_a_sign_in_whose_next_page_does_not_fit_into_the_cookie_goes_on_with_the_topics() -> None:
    async def scenario(provider: Provider, sign_in: OidcSignIn) -> None:
        provider.answers.set()
        for length, goes_on in ((2_000, True), (4_000, False), (60_000, False)):
            page = "/console/" + "x" * length
            _, cookie = await sign_in.begin(page, now_ms=NOW_MS)
            flow = sign_in.opened(cookie, now_ms=NOW_MS)
            assert flow is not None
            assert flow.next == (page if goes_on else link("topics"))

    with_provider(scenario)


class Newer(msgspec.Struct):
    """Is what another version of Tidelog seals."""

    expires_at_ms: int = NOW_MS + FLOW_MS


def test_a_flow_opens_until_it_ends_and_other_cookies_never() -> None:
    async def scenario(provider: Provider, sign_in: OidcSignIn) -> None:
        provider.answers.set()
        _, cookie = await sign_in.begin("/console", now_ms=NOW_MS)
        assert sign_in.opened(cookie, now_ms=NOW_MS + FLOW_MS - 1) is not None
        assert sign_in.opened(cookie, now_ms=NOW_MS + FLOW_MS) is None
        assert sign_in.opened(SEALER.seal(Newer()), now_ms=NOW_MS) is None
        assert sign_in.opened("", now_ms=NOW_MS) is None

    with_provider(scenario)


@pytest.mark.parametrize("url", ["https://[", "http://provider.example/token", "ftp://localhost/token", "https:///token"])
def test_an_endpoint_that_is_no_safe_url_is_not_used(url: str) -> None:
    assert not is_safe_url(url)
