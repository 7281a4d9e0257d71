"""Answers the requests below /console: finds the session of the reader and the page, and sends what the page returns.

    /console/static/NAME   a script or style, from memory
    /console/sign-in       asks for an API key where authentication is on
    /console/oidc/…        signs in at an OpenID provider, where the settings name a client
    /console/…             a page of pages/

A form carries the token of its session, so that no page of another site can post it. Invariant: an answer without a session shows
the sign-in page, or an error; every page, script and stream carries the content security policy.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from gateway.api import BrokerApi
from gateway.concurrency.offload import BoundedExecutor
from gateway.console.api_client import ApiClient, ApiRefused, Asgi, Scope
from gateway.console.page import ROOT, Answer, Redirect, Rendered, Routes, Stream, View, link
from gateway.console.pages.access import access_routes
from gateway.console.pages.bill import bill_routes
from gateway.console.pages.cluster import cluster_routes
from gateway.console.pages.groups import group_routes
from gateway.console.pages.records import record_routes
from gateway.console.pages.refusals import refusal_routes
from gateway.console.pages.sign_in import sign_in_routes
from gateway.console.pages.tail import tail_routes
from gateway.console.pages.topics import topic_routes
from gateway.console.rendering import Templates
from gateway.console.session_cookie import SESSION_MS, CookieSealer, Session, SessionSealer
from gateway.error_codes import wire_codes
from gateway.http.request import Disconnected, Headers, Request
from gateway.settings import GatewaySettings
from metadata.errors import InvalidArgument, TidelogError
from metadata.secret import Secret

if TYPE_CHECKING:
    from gateway.console.oidc_sign_in import OidcSignIn

COOKIE: Final = "tidelog_console"
# Holds a sign-in at the OpenID provider. The browser sends it when the provider's page leads back, unlike the session's.
FLOW_COOKIE: Final = "tidelog_console_sign_in"
# Tells the sign-ins of readers from those of strangers. It gives no rights, and stays when a reader signs out.
KNOWN_COOKIE: Final = "tidelog_console_known"
STATIC: Final = Path(__file__).parent / "static"
# How long a reader may take at the provider, and how long a browser is known.
FLOW_AGE_S: Final = 600
KNOWN_AGE_S: Final = 90 * 86_400
# Bounds of a posted form.
FORM_BYTES_MAX: Final = 2 << 20
FORM_TIMEOUT_S: Final = 10.0
_MEDIA_TYPES: Final = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
# No inline script or style runs, nothing comes from another host, and no other site shows these pages in a frame.
CONTENT_SECURITY_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    b"base-uri 'none'; frame-ancestors 'none'"
)
_SECURITY: Final = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


def load_console(broker: BrokerApi, app: Asgi) -> Console:
    """Returns the console of a broker. `app` serves its API."""
    guard = broker.guard
    secret = Secret(secrets.token_hex(32)) if guard is None else guard.session_secret
    sealer = SessionSealer(secret, secrets.token_bytes)
    return Console(
        app,
        sealer,
        oidc=_oidc(broker.settings, guard.oidc_issuer, secret) if guard is not None else None,
        asks_for_credentials=guard is not None,
        shows_values=broker.settings.console_values,
        version=broker.version,
    )


class Console:
    """Serves the console's pages as an ASGI application."""

    def __init__(
        self,
        app: Asgi,
        sealer: SessionSealer,
        *,
        oidc: OidcSignIn | None,
        asks_for_credentials: bool,
        shows_values: bool,
        version: str,
    ) -> None:
        """`app` serves the API. `asks_for_credentials`: authentication is on, so readers have to sign in.

        `oidc` signs readers in at an OpenID provider; None: there is none.

        `shows_values`: pages show keys, values and headers of records.
        """
        self._shows_values = shows_values
        self._app = app
        self._sealer = sealer
        self._asks_for_credentials = asks_for_credentials
        self._version = version
        self._templates = Templates()
        # A page of 500 records takes tens of milliseconds, in which the event loop serves others.
        self._threads = BoundedExecutor(1)
        self._static = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.suffix in _MEDIA_TYPES}
        self._routes = Routes()
        pages = (topic_routes, record_routes, group_routes, cluster_routes, bill_routes, access_routes, refusal_routes)
        for add_routes in pages:
            add_routes(self._routes)
        tail_routes(self._routes, self._templates)
        sign_in_routes(self._routes, self._new_session)
        self._signs_in_by_oidc = oidc is not None
        if oidc is not None:
            from gateway.console.pages.oidc import oidc_routes  # with the libraries of tokens

            oidc_routes(self._routes, oidc, self._new_session, _now_ms)

    async def __call__(self, request: Request, scope: Scope, parts: list[str]) -> None:
        """Answers a request. `parts`: the path below ROOT, decoded."""
        if parts[:1] == ["static"]:
            await self._send_static(request, "/".join(parts[1:]))
            return
        session, is_new = self._session(request)
        view = View(
            api=ApiClient(self._app, scope, session.credentials),
            session=session,
            names={},
            query={},
            form={},
            is_fragment=request.headers.get(b"hx-request") == b"true",
            signed_in=bool(session.credentials),
            flow=_cookie(request.headers.get(b"cookie", b""), FLOW_COOKIE),
            known=_cookie(request.headers.get(b"cookie", b""), KNOWN_COOKIE),
            address=(scope.get("client") or ("",))[0],
            shows_values=self._shows_values,
        )
        try:
            view = replace(view, query=_pairs(request.query_string), form=await _form(request))
            if is_new and self._asks_for_credentials and _comes_from_elsewhere(request):
                # without the new session: its cookie would replace the reader's
                await self._send(request, scope, Rendered("continue.html", {"target": link(*parts, **view.query)}), view, new=None)
                return
            answer = await self._answer(request, tuple(part for part in parts if part), view)
            if isinstance(answer, Stream):
                await _send_stream(request, answer)
                return
        except ApiRefused as error:
            answer = self._refused(error, view, parts if request.method == "GET" else [])
        except TidelogError as error:  # of the request itself
            answer = _error_page(error.code, error.message, error.hint, status=wire_codes(error).http)
        await self._send(request, scope, answer, view, new=session if is_new else None)

    async def _answer(self, request: Request, parts: tuple[str, ...], view: View) -> Answer:
        found = self._routes.find("GET" if request.method == "HEAD" else request.method, parts)
        if found is None:
            return _error_page("There is no such page", status=404)
        if request.method == "POST" and not hmac.compare_digest(
            view.form.get("csrf_token", "").encode(), view.session.csrf_token.encode()
        ):
            return _error_page("This form is too old", "Nothing was changed.", "Open the page again, and repeat it.", status=403)
        page, names = found
        return await page(replace(view, names=names))

    def _refused(self, error: ApiRefused, view: View, parts: Sequence[str]) -> Rendered | Redirect:
        """Shows why the API refused a call; a reader without valid credentials signs in, and comes back to the page."""
        if error.status == 401 and self._asks_for_credentials:
            return Redirect(link("sign-in", next=link(*parts, **view.query)), ends_session=view.signed_in)
        page = _error_page(error.code or "The broker refused this", error.message, error.hint, status=error.status)
        return replace(page, values={**page.values, "explained_at": _explanation_of(error)})

    # ── sessions ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _session(self, request: Request) -> tuple[Session, bool]:
        """Returns the reader's session, and whether its cookie has to be set."""
        session = self._sealer.open(_cookie(request.headers.get(b"cookie", b""), COOKIE), now_ms=_now_ms())
        if session is not None:
            return session, False
        return self._new_session(""), True

    def _new_session(self, credentials: str) -> Session:
        return self._sealer.new_session(credentials, now_ms=_now_ms())

    def _set_cookie(self, scope: Scope, session: Session | None) -> tuple[bytes, bytes]:
        value = "" if session is None else self._sealer.seal(session)
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        age_s = 0 if session is None else SESSION_MS // 1000
        text = f"{COOKIE}={value}; Path={ROOT}; Max-Age={age_s}; HttpOnly; SameSite=Strict{secure}"
        return b"set-cookie", text.encode("ascii")

    # ── answers ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _send(self, request: Request, scope: Scope, answer: Rendered | Redirect, view: View, *, new: Session | None) -> None:
        headers: Headers = [*_SECURITY, (b"cache-control", b"no-store")]
        if isinstance(answer, Redirect):
            if view.is_fragment:  # htmx would show the other page in place of a part of this one
                await request.answer(401 if answer.ends_session else 409, b"", headers)
                return
            if answer.session is not None or answer.ends_session:
                headers.append(self._set_cookie(scope, answer.session))
            if answer.flow is not None:
                headers.append(_oidc_cookie(scope, FLOW_COOKIE, answer.flow, age_s=FLOW_AGE_S if answer.flow else 0))
            if answer.known is not None:
                headers.append(_oidc_cookie(scope, KNOWN_COOKIE, answer.known, age_s=KNOWN_AGE_S))
            await request.answer(303, b"", [*headers, (b"location", answer.location.encode("ascii"))])
            return
        if new is not None:
            headers.append(self._set_cookie(scope, new))
        body = await self._threads.run(lambda: self._rendered(answer, view))
        await request.answer(answer.status, body, [*headers, (b"content-type", b"text/html; charset=utf-8")])

    def _rendered(self, answer: Rendered, view: View) -> bytes:
        values = self._values(view) | dict(answer.values)
        if answer.prepare is not None:
            values |= answer.prepare()
        return self._templates.render(answer.template, values, block=answer.block)

    def _values(self, view: View) -> dict[str, Any]:
        """Returns what the layout of each page shows."""
        return {
            "csrf_token": view.session.csrf_token,
            "signed_in": view.signed_in,
            "signs_in_by_oidc": self._signs_in_by_oidc,
            "shows_values": view.shows_values,
            "version": self._version,
            "query": view.query,
        }

    async def _send_static(self, request: Request, name: str) -> None:
        content = self._static.get(name)
        if content is None:
            await request.answer(404, b"", [*_SECURITY])
            return
        kind = _MEDIA_TYPES[Path(name).suffix].encode("ascii")
        # The names of vendored files carry their version; the console's own are small.
        age = b"max-age=31536000, immutable" if any(each.isdigit() for each in name) else b"no-cache"
        await request.answer(200, content, [*_SECURITY, (b"content-type", kind), (b"cache-control", age)])


def _error_page(title: str, message: str = "", hint: str = "", *, status: int) -> Rendered:
    return Rendered("error.html", {"title": title, "message": message, "hint": hint, "explained_at": ""}, status)


def _explanation_of(error: ApiRefused) -> str:
    """Returns the address of the page that explains a refusal to an administrator; empty for other errors."""
    about = {name: str(error.problem.get(name, "")) for name in ("principal", "operation", "resource")}
    return link("access", "explain", **about, name=str(error.problem.get("name", ""))) if all(about.values()) else ""


def _oidc_cookie(scope: Scope, name: str, value: str, *, age_s: int) -> tuple[bytes, bytes]:
    """Returns a cookie of the sign-in. It is Lax: the browser sends it with the navigation from the provider's page."""
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    text = f"{name}={value}; Path={ROOT}/oidc; Max-Age={age_s}; HttpOnly; SameSite=Lax{secure}"
    return b"set-cookie", text.encode("ascii")


def _oidc(settings: GatewaySettings, issuer: str, secret: Secret) -> OidcSignIn | None:
    """Returns the sign-in at the provider; None where the settings name no client. Raises InvalidArgument for a secret's file that
    can't be read."""
    if not settings.console_oidc_client_id or not issuer:
        return None
    from gateway.console.oidc_sign_in import OidcClient, OidcSignIn  # with the libraries of tokens

    path = settings.console_oidc_client_secret_file
    try:
        client_secret = Secret(path.read_text(encoding="utf-8").strip()) if path is not None else None
    except (OSError, UnicodeDecodeError):
        raise InvalidArgument(f"console_oidc_client_secret_file: {path} can't be read as text") from None
    client = OidcClient(
        issuer, settings.console_oidc_client_id, client_secret, settings.console_oidc_redirect, settings.console_oidc_scope
    )
    return OidcSignIn(
        client,
        CookieSealer(secret, secrets.token_bytes, purpose=b"tidelog console sign-in"),
        secrets.token_bytes,
        known=CookieSealer(secret, secrets.token_bytes, purpose=b"tidelog console known reader"),
    )


def _comes_from_elsewhere(request: Request) -> bool:
    """Returns whether a page of another site led here. The browser withholds the session's cookie then.

    A page that continues to the same address is followed with the cookie.
    """
    is_navigation = request.method == "GET" and request.headers.get(b"sec-fetch-mode") == b"navigate"
    return is_navigation and request.headers.get(b"sec-fetch-site") in {b"cross-site", b"same-site"}


async def _send_stream(request: Request, answer: Stream) -> None:
    """Sends the parts as they come. Raises ApiRefused before the answer begins; Disconnected once the reader has left, or the API
    refuses to go on: the connection is closed then, so that the browser does not take the part for the whole.
    """
    is_begun = False

    async def send() -> None:
        nonlocal is_begun
        async with aclosing(answer.parts) as parts:
            first = await anext(parts, b"")
            headers: Headers = [*_SECURITY, (b"content-type", answer.media_type.encode("ascii"))]
            if answer.filename:
                headers.append((b"content-disposition", f'attachment; filename="{answer.filename}"'.encode("ascii", "replace")))
            is_begun = True
            await request.begin_stream(headers)
            await request.stream(first)
            async for part in parts:
                await request.stream(part)
            await request.end_stream()

    try:
        await request.run_while_connected(send())
    except ApiRefused as error:
        if not is_begun:
            raise
        raise Disconnected from error


async def _form(request: Request) -> dict[str, str]:
    """Reads a posted form. Raises InvalidArgument, TooLarge, BodyTooSlow."""
    if request.method != "POST":
        return {}
    request.media_type(("application/x-www-form-urlencoded",))
    length = request.content_length(bytes_max=FORM_BYTES_MAX)
    body = await request.body(None, length=length, bytes_max=FORM_BYTES_MAX, timeout_s=FORM_TIMEOUT_S)
    return _pairs(body)


def _pairs(raw: bytes) -> dict[str, str]:
    """Returns the last value of each name. Raises InvalidArgument for bytes that are no form."""
    try:
        return dict(parse_qsl(raw.decode("ascii"), keep_blank_values=True, strict_parsing=bool(raw), errors="strict"))
    except (UnicodeDecodeError, ValueError):
        raise InvalidArgument("the query or the form is not name=value&name=value in UTF-8, percent-encoded") from None


def _cookie(header: bytes, name: str) -> str:
    jar: SimpleCookie = SimpleCookie()
    try:
        jar.load(header.decode("latin-1"))
    except CookieError:
        return ""
    return jar[name].value if name in jar else ""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
