"""Asks for an API key, and puts it into the reader's sealed session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gateway.console.api_client import ApiRefused
from gateway.console.page import ROOT, Answer, Redirect, Rendered, Routes, View, link
from gateway.console.session_cookie import Session

# Longer ones do not fit into a cookie.
KEY_CHARACTERS_MAX: Final = 2_500


def sign_in_routes(routes: Routes, new_session: Callable[[str], Session]) -> None:
    """Adds the pages for signing in and out. `new_session` begins a session with an `authorization` header."""

    async def ask(view: View) -> Answer:
        return Rendered("sign_in.html", {"next": next_page(view.query), "refused": ""})

    async def sign_in(view: View) -> Answer:
        key = view.form.get("key", "").strip()
        refused = ""
        if not key or len(key) > KEY_CHARACTERS_MAX or not key.isascii() or not key.isprintable():
            refused = "Enter an API key, or a token of your identity provider."
        else:
            credentials = f"Bearer {key}"
            try:
                await view.api.with_credentials(credentials).get("v1", "brokers")
            except ApiRefused as error:
                refused = error.message
            else:
                return Redirect(next_page(view.form), session=new_session(credentials))
        return Rendered("sign_in.html", {"next": next_page(view.form), "refused": refused}, status=403)

    async def sign_out(view: View) -> Answer:
        return Redirect(link("sign-in"), ends_session=True)

    routes.add("GET", "sign-in", ask)
    routes.add("POST", "sign-in", sign_in)
    routes.add("POST", "sign-out", sign_out)


def next_page(given: Mapping[str, str]) -> str:
    """Returns the page to go on with: only an address of this console."""
    asked = given.get("next", "")
    return asked if asked == ROOT or (asked.startswith(f"{ROOT}/") and asked.isascii() and asked.isprintable()) else link("topics")
