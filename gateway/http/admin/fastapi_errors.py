"""What FastAPI would refuse in its own way, told as every other refusal: plain words, where it is, what to send instead.

    unknown path            404, with the route that was meant, where one is near
    another method          405, with those of all routes of this path
    a body or parameter     400, with its place, what it must be, and an example of the whole body
    query parameters        400 for one that is unknown or given twice, which FastAPI would not notice

Pure: each raises what http/app.py tells. Invariant: nothing of the framework or of Python shows in an answer.
"""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match

from gateway.error_codes import PATH_CHARACTERS_MAX, MethodNotAllowed, UnknownRoute
from gateway.http.validation_errors import of_pydantic
from metadata.errors import InvalidArgument, did_you_mean


async def check_query(request: Request) -> None:
    known = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or (f"Known here: {', '.join(sorted(known))}." if known else "None is known here.")
            raise InvalidArgument(f"{name[:60]!r} is not a query parameter of this route", hint=hint)
        if names.count(name) > 1:
            raise InvalidArgument(f"the query parameter {name} is given twice", hint="Give it once.")


async def translate_http(request: Request, error: Exception) -> NoReturn:
    assert isinstance(error, HTTPException)
    path = request.url.path
    shown = path[:PATH_CHARACTERS_MAX]
    if error.status_code == 404:
        meant = _route_meant(list(request.app.openapi()["paths"]), path) if len(path) <= PATH_CHARACTERS_MAX else ""
        raise UnknownRoute(f"there is nothing at {shown}", hint=f"Did you mean {meant}?" if meant else None)
    if error.status_code == 405:
        allow = ", ".join(sorted(_methods_at(request)))
        raise MethodNotAllowed(f"{request.method} is not possible at {shown}", hint=f"Possible: {allow}.", allow=allow)
    raise InvalidArgument(
        "the body can't be read as JSON", hint="It may be nested too deeply, or hold a number of thousands of digits."
    )


def _methods_at(request: Request) -> set[str]:
    """The methods of all routes that have this path: the framework tells those of the first alone."""
    matching = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return {method for route in matching for method in route.methods or ()}


def _route_meant(patterns: list[str], path: str) -> str:
    """The path as a route has it, where only a word is mistyped, or a slash or /v1 is missing or too many; else ''."""
    given = path.strip("/").split("/")
    for parts in (given, ["v1", *given]):
        for pattern in patterns:
            words = pattern.strip("/").split("/")
            if len(words) == len(parts) and all(map(_is_meant, parts, words)):
                return "/" + "/".join(part if word.startswith("{") else word for part, word in zip(parts, words, strict=True))
    return ""


def _is_meant(part: str, word: str) -> bool:
    return part != "" if word.startswith("{") else part == word or did_you_mean(part, (word,)) != ""


async def translate_validation(request: Request, error: Exception) -> NoReturn:
    assert isinstance(error, RequestValidationError)
    faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")  # what is mistyped is missing as well
    body: list[type[BaseModel]] = [held.field_info.annotation for held in request.scope["route"].dependant.body_params]
    hint = f"Send for example {_example_of(body[0])}." if body and faults[0]["loc"][0] == "body" else None
    if faults[0]["type"] == "json_invalid":
        said = faults[0].get("ctx", {}).get("error", "")
        raise InvalidArgument(f"the body is not JSON: {said} (byte {faults[0]['loc'][-1]})", hint=hint)
    fault = of_pydantic(faults)
    if fault.unknown_field is not None:
        hint = (did_you_mean(fault.unknown_field, body[0].model_fields) + f" {hint}").strip()
    place = fault.place if faults[0]["loc"][0] == "body" else ".".join(map(str, faults[0]["loc"]))
    details: dict[str, str] = {"field": place} if place else {}
    raise InvalidArgument(fault.sentence("the body"), hint=hint, **details)


def _example_of(model: type[BaseModel]) -> str:
    extra: Any = model.model_config["json_schema_extra"]  # every body has one
    return msgspec.json.encode(extra["examples"][0]).decode()


async def hand_on(_: Request, error: Exception) -> NoReturn:
    raise error
