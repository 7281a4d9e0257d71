"""Defines the options of a group member, `log.consume(…, group=…)`. Pure; checked when they are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Final, TypedDict

from metadata.errors import InvalidArgument, did_you_mean
from metadata.group_member.settings import MemberSettings
from metadata.groups.assignors import TopicPartitionName

# The wire has 32 bits for it.
_MS_END: Final = 2**32

# What `consume` takes beside them.
_OF_EVERY_READER: Final = frozenset({"from_", "partitions", "follow", "until", "auto_offset_reset", "group"})

# A plain or an async function, which receives partitions as (topic, number), in order.
PartitionsCallback = Callable[[list[TopicPartitionName]], Awaitable[None] | None]


class GroupOptionChanges(TypedDict, total=False):
    """The keyword arguments of `consume` that need a group; a test holds them together with GroupOptions and MemberSettings."""

    auto_commit: bool
    auto_commit_interval_ms: float
    on_assigned: PartitionsCallback | None
    on_revoked: PartitionsCallback | None
    on_lost: PartitionsCallback | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    topics_interval_ms: int
    assignors: tuple[str, ...]
    instance_id: str
    client_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """The options of a group member."""

    member: MemberSettings
    # Commits what was processed by itself: in the background, before a partition is given up, and when the reading ends.
    auto_commit: bool = True
    auto_commit_interval_ms: float = 5_000.0
    # Receives partitions that are read from now on; it may `seek` in them.
    on_assigned: PartitionsCallback | None = None
    # Receives partitions that move to other members once it returns. Processed records are committed; it may `commit`.
    on_revoked: PartitionsCallback | None = None
    # Receives partitions that other members may own already; their offsets can't be committed.
    on_lost: PartitionsCallback | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.auto_commit, bool):
            raise InvalidArgument(f"auto_commit is {self.auto_commit!r}", hint="Use True or False.")
        for name in ("on_assigned", "on_revoked", "on_lost"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise InvalidArgument(f"{name} is {getattr(self, name)!r}, which can't be called", hint="Give a function.")
        if isinstance(self.auto_commit_interval_ms, bool) or not isinstance(self.auto_commit_interval_ms, int | float):
            raise InvalidArgument(f"auto_commit_interval_ms is {self.auto_commit_interval_ms!r}, which is not a number")
        if not self.auto_commit_interval_ms > 0:
            raise InvalidArgument(
                f"auto_commit_interval_ms is {self.auto_commit_interval_ms}; it must be above 0",
                hint="Use auto_commit=False to commit by yourself.",
            )


def group_options(changes: dict[str, Any] | GroupOptionChanges) -> GroupOptions:
    """Returns the defaults with these changes. Refuses unknown names, and names the nearest option."""
    of_member = {field.name for field in fields(MemberSettings)}
    known = of_member | {field.name for field in fields(GroupOptions)} - {"member"}
    for name in changes:
        if name not in known:
            nearest = did_you_mean(name, known | _OF_EVERY_READER)
            raise InvalidArgument(
                f"consume() has no option {name!r}", hint=nearest or f"A group's are: {', '.join(sorted(known))}."
            )
    for_member = {name: value for name, value in changes.items() if name in of_member}
    for field in fields(MemberSettings):
        if field.name in for_member and not _fits(for_member[field.name], type(field.default)):
            raise InvalidArgument(
                f"{field.name} is {for_member[field.name]!r}", hint=f"Use a value such as its default, {field.default!r}."
            )
    if "assignors" in for_member and not isinstance(for_member["assignors"], str):
        for_member["assignors"] = tuple(for_member["assignors"])  # type: ignore[arg-type]  # its values are objects to mypy
    others = {name: value for name, value in changes.items() if name not in of_member}
    return GroupOptions(member=MemberSettings(**for_member), **others)  # type: ignore[arg-type]  # each value belongs to the field of its name


def _fits(value: object, kind: type) -> bool:
    """Returns whether the group's coordinator accepts the value."""
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and value < _MS_END
    if kind is str:
        return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)  # a lone surrogate: no UTF-8
    return isinstance(value, Iterable)
