"""Reads and answers one request about a consumer group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from gateway.http.groups.cursor import Cursor
from gateway.http.request import Query, Request
from metadata.errors import InvalidArgument, RebalanceInProgress, StaleGeneration, UnknownMember
from metadata.groups.model import NO_MEMBER, Generation, InstanceId, MemberId

INT32_MAX: Final = 2**31 - 1


class GroupRequest(NamedTuple):
    """Holds a request, with the group and member that its path names."""

    request: Request
    # Empty for a route about all groups.
    group: str
    member_id: MemberId
    body: bytes
    client_host: str

    @property
    def path(self) -> str:
        return f"/v1/groups/{quote(self.group, safe='')}"

    @property
    def member_path(self) -> str:
        return member_path(self.path, self.member_id)

    def query(self, *known: str) -> Query:
        return self.request.query(frozenset(known))

    def refuse_body(self) -> None:
        """Raises InvalidArgument if there is a body, which the route would ignore."""
        if self.body:
            raise InvalidArgument("this request takes no body", hint="Send it without; parameters go in the query.")

    async def answer(self, body: msgspec.Struct | None, *, status: int = 200, location: str = "") -> None:
        """Sends the answer as JSON; None is an empty answer with the status 204."""
        if body is None:  # without a length, RFC 9110 §8.6
            await self.request.send({"type": "http.response.start", "status": 204, "headers": []})
            await self.request.send({"type": "http.response.body", "body": b""})
            return
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        if location:
            headers.append((b"location", location.encode()))
        await self.request.answer(status, msgspec.json.encode(body), headers)

    @contextmanager
    def with_hints(self) -> Iterator[None]:
        """Adds to the refusal of a member a hint with its next request."""
        try:
            yield
        except UnknownMember as error:
            if self.member_id != NO_MEMBER:
                error.hint = f"Join as a new member: POST {self.path}/members without a member_id."
            raise
        except RebalanceInProgress as error:
            commit, join = f"POST {self.member_path}/offsets", f"POST {self.path}/members with this member_id"
            error.hint = f"Commit what was read ({commit}), and join again: {join}."
            raise
        except StaleGeneration as error:
            error.hint = f"Join again: POST {self.path}/members with this member_id. Reading then begins at what is committed."
            raise


class MemberIdentity(NamedTuple):
    """Identifies a member and its generation in a request to the coordinator."""

    group: str
    member_id: MemberId
    instance_id: InstanceId
    generation: Generation


def member_path(group_path: str, member_id: str) -> str:
    return f"{group_path}/members/{quote(member_id, safe='')}"


def check_generation(cursor: Cursor, member: MemberIdentity) -> None:
    """Raises StaleGeneration for a cursor of another generation, whose partitions may have other owners now."""
    if cursor.generation != member.generation:
        raise StaleGeneration(
            f"the cursor is of generation {cursor.generation}, but the request is of generation {member.generation}",
            generation=member.generation,
        )


def numbers_of(query: Query, name: str) -> list[int]:
    """Returns the partitions of name=0,1,2; none if it is absent. Raises InvalidArgument."""
    text = query.text(name)
    numbers = text.split(",") if name in query else []
    if any(not (number.isascii() and number.isdigit() and len(number) <= 10) for number in numbers):
        raise InvalidArgument(f"{name}={text[:60]!r}: must be numbers of partitions, as in {name}=0,1,2")
    partitions = [int(number) for number in numbers]
    if any(partition > INT32_MAX for partition in partitions):
        raise InvalidArgument(f"a partition is a number from 0 to {INT32_MAX}", field=name)
    return partitions
