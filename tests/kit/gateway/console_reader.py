"""A browser as the console sees it: it keeps a cookie, and posts forms with the token that their page holds."""

from __future__ import annotations

import re

from yarl import URL

from tests.kit.gateway.http_client import Answer, Client

FORM = {"content-type": "application/x-www-form-urlencoded"}


class Reader:
    """Keeps the cookie of a browser, and posts forms with their token."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._cookie = ""

    async def get(self, path: str | URL) -> tuple[int, str]:
        answer = await self._client.ask("GET", path, allow_redirects=False, headers={"cookie": self._cookie})
        self._keep_cookie(answer)
        return answer.status, answer.body.decode()

    async def post(self, page: str | URL, path: str | URL, form: str) -> tuple[int, str]:
        """Posts a form of a page. Returns the status, and the location or the body."""
        _, html = await self.get(page)
        token = re.search(r'name="csrf_token" value="([^"]+)"', html)
        assert token is not None
        headers = FORM | {"cookie": self._cookie}
        body = "&".join(part for part in (f"csrf_token={token[1]}", form) if part).encode()
        answer = await self._client.ask("POST", path, data=body, headers=headers, allow_redirects=False)
        self._keep_cookie(answer)
        return answer.status, answer.headers.get("location", answer.body.decode())

    def _keep_cookie(self, answer: Answer) -> None:
        if "set-cookie" in answer.headers:
            self._cookie = answer.headers["set-cookie"].partition(";")[0]
