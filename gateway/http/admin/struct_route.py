"""Adapts FastAPI to endpoints that take and return msgspec structs.

    parameter of a Body     decoded by gateway/http/struct_body.py
    returned struct         encoded by msgspec
    OpenAPI document        body and answer refer to the schemas of the structs, which openapi.py adds

FastAPI itself parses the parameters of path and query, and does not see the structs.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Annotated, Any, get_type_hints

import msgspec
from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute

from gateway.http.struct_body import Body, decode_body


class StructRoute(APIRoute):
    """Is the class of all FastAPI routes: it decodes the body and encodes the answer of an endpoint."""

    def __init__(self, path: str, endpoint: Callable[..., Awaitable[Any]], **options: Any) -> None:
        hints: dict[str, Any] = get_type_hints(endpoint, include_extras=True)
        answer = hints.pop("return")
        self.answer: type[msgspec.Struct] | None = None if answer is type(None) else answer
        self.body: type[Body] | None = None
        for name, kind in hints.items():
            if inspect.isclass(kind) and issubclass(kind, Body):
                self.body = kind
                hints[name] = Annotated[kind, Depends(_decoder(kind))]
                options["openapi_extra"] = {"requestBody": {"required": True, **_content(kind)}}
        if self.answer is not None:
            status = options["status_code"] or 200
            options["responses"] = {status: _content(self.answer)}
            endpoint = _encoded(endpoint, status)
        parameters = inspect.signature(endpoint).parameters.values()
        typed = [parameter.replace(annotation=hints[parameter.name]) for parameter in parameters]
        endpoint.__signature__ = inspect.Signature(typed)  # type: ignore[attr-defined]  # FastAPI reads it, but typeshed does not declare it
        super().__init__(path, endpoint, **options | {"response_model": None})


def _encoded(endpoint: Callable[..., Awaitable[msgspec.Struct]], status: int) -> Callable[..., Awaitable[Response]]:
    """Wraps an endpoint so that it returns an encoded answer, with the status and headers that it set on `response`."""

    @wraps(endpoint)
    async def endpoint_response(**given: Any) -> Response:
        body = msgspec.json.encode(await endpoint(**given))
        response: Response | None = given.get("response")
        headers = {} if response is None else dict(response.headers)
        return Response(body, (response and response.status_code) or status, headers, "application/json")

    return endpoint_response


def _decoder(of: type[Body]) -> Callable[[Request], Awaitable[Body]]:
    async def read(request: Request) -> Body:
        return decode_body(await request.body(), of)

    return read


def _content(of: type[msgspec.Struct]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{of.__name__}"}}}}
