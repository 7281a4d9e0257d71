"""Sends readers to the OpenID provider, and takes them back with a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.console.api_client import ApiRefused
from gateway.console.oidc_sign_in import OidcSignIn, SignInRefused, Tokens
from gateway.console.page import Answer, Redirect, Rendered, Routes, View
from gateway.console.pages.sign_in import KEY_CHARACTERS_MAX, next_page
from gateway.console.session_cookie import Session

TOO_LONG: Final = (
    "The token of the provider has {length:,} characters. The console keeps it in a cookie, which takes {most:,}. Let the provider "
    "issue shorter tokens for this client, for example without groups, or sign in with an API key."
)


def oidc_routes(routes: Routes, sign_in: OidcSignIn, new_session: Callable[[str], Session], now_ms: Callable[[], int]) -> None:
    """Adds the pages of the flow. `new_session` begins a session with an `authorization` header."""

    async def start(view: View) -> Answer:
        try:
            location, cookie = await sign_in.begin(next_page(view.query), now_ms=now_ms())
        except SignInRefused as error:
            return _refused(error)
        return Redirect(location, flow=cookie)

    async def callback(view: View) -> Answer:
        flow = sign_in.opened(view.flow, now_ms=now_ms())
        if flow is None:
            return _refused(SignInRefused("The sign-in took too long, or was begun in another browser. Sign in again."))
        try:
            reader = sign_in.known_reader(view.known, now_ms=now_ms())
            tokens = await sign_in.end(flow, view.query, address=view.address, reader=reader)
            credentials = await _accepted(view, tokens)
        except SignInRefused as error:
            return _refused(error, next_=flow.next)
        known = sign_in.known_cookie(tokens, now_ms=now_ms())
        return Redirect(flow.next, session=new_session(credentials), flow="", known=known)

    routes.add("GET", "oidc/start", start)
    routes.add("GET", "oidc/callback", callback)


async def _accepted(view: View, tokens: Tokens) -> str:
    """Returns the credentials that the API accepts. Raises SignInRefused."""
    message = ""
    for token in (tokens.access_token, tokens.id_token):
        if token.count(".") != 2 or not token.isascii() or not token.isprintable():
            continue  # an access token may be opaque; only a JWT can be verified here
        credentials = f"Bearer {token}"
        try:
            await view.api.with_credentials(credentials).get("v1", "brokers")
        except ApiRefused as error:
            message = message or f"The broker accepts no token of the provider: {error.message}."
            continue
        if len(token) <= KEY_CHARACTERS_MAX:
            return credentials
        message = TOO_LONG.format(length=len(token), most=KEY_CHARACTERS_MAX)
    raise SignInRefused(message or "The provider issued no token that is a JWT.")


def _refused(error: SignInRefused, *, next_: str = "") -> Rendered:
    return Rendered("sign_in.html", {"next": next_ or next_page({}), "refused": str(error)}, status=error.status)
