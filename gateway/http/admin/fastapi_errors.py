"""Translates FastAPI's refusals into Tidelog's errors.

    unknown path            404, with the route that was probably meant
    unsupported method      405, with the methods of all routes of this path
    parameter               400, with its name and what it must be; struct_route.py decodes bodies
    query parameters        400 for an unknown or repeated one, which FastAPI ignores

Pure: each function raises, and http/app.py answers. Invariant: no answer names the framework or Python.
"""

from __future__ import annotations

from typing import Final, NoReturn

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from gateway.error_codes import PATH_CHARACTERS_MAX, MethodNotAllowed, UnknownRoute
from gateway.http.request import Query
from gateway.http.validation_errors import quoted
from metadata.errors import InvalidArgument, did_you_mean

# What a parameter must be, by pydantic's type of the error.
_MUST_BE: Final = {
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "bool_parsing": "true or false",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "less_than": "below {lt}",
}


async def check_query(request: Request) -> None:
    """Raises InvalidArgument for an unknown or repeated query parameter."""
    known = frozenset(parameter.alias for parameter in request.scope["route"].dependant.query_params)
    Query(request.scope["query_string"], known)


async def translate_http(request: Request, error: Exception) -> NoReturn:
    assert isinstance(error, HTTPException)
    path = request.url.path
    shown = path[:PATH_CHARACTERS_MAX]
    if error.status_code == 405:
        allow = ", ".join(sorted(_methods_at(request)))
        raise MethodNotAllowed(f"{request.method} is not supported at {shown}", hint=f"Supported: {allow}.", allow=allow)
    meant = _route_meant(list(request.app.openapi()["paths"]), path) if len(path) <= PATH_CHARACTERS_MAX else ""
    raise UnknownRoute(f"there is no route {shown}", hint=f"Did you mean {meant}?" if meant else None)


def _methods_at(request: Request) -> set[str]:
    """Returns the methods of all routes with this path; the framework's error has only those of the first."""
    matching = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return {method for route in matching for method in route.methods or ()}


def _route_meant(patterns: list[str], path: str) -> str:
    """Returns the corrected path if a word is mistyped, or a slash or /v1 is missing or superfluous; else an empty string."""
    given = path.strip("/").split("/")
    for parts in (given, ["v1", *given]):
        for pattern in patterns:
            words = pattern.strip("/").split("/")
            if len(words) == len(parts) and all(map(_is_meant, parts, words)):
                return "/" + "/".join(part if word.startswith("{") else word for part, word in zip(parts, words, strict=True))
    return ""


def _is_meant(part: str, word: str) -> bool:
    return part != "" if word.startswith("{") else part == word or did_you_mean(part, (word,)) != ""


async def translate_validation(_: Request, error: Exception) -> NoReturn:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    source, name = first["loc"]
    problem = "is missing"
    if first["type"] != "missing":
        must_be = _MUST_BE.get(first["type"], "another value").format(**first.get("ctx", {}))
        problem = f"must be {must_be}; it is {quoted(str(first['input']))}"
    raise InvalidArgument(f"the {source} parameter {name} {problem}", field=f"{source}.{name}")


async def reraise(_: Request, error: Exception) -> NoReturn:
    raise error
