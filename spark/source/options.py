"""Parses the options of the source, which have the names of Spark's Kafka source. Pure.

    bucket               the URL, as brokers take it
    which partitions     subscribe, subscribePattern or assign
    from where           startingTimestamp, else startingOffsetsByTimestamp, else startingOffsets
    up to where          endingTimestamp, else endingOffsetsByTimestamp, else endingOffsets
    how                  minPartitions, maxRecordsPerPartition, failOnDataLoss, includeHeaders, startingOffsetsByTimestampStrategy
    of a plan            topicIds: ids by topic, of which the offsets are; another life of a topic is refused
    of a stream          maxOffsetsPerTrigger; where it starts counts for a new query only, and an end makes it a bounded one

Names are compared without regard to case, as Spark does. What is unknown or malformed is refused on the driver, before a
task starts.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from metadata.errors import InvalidArgument
from metadata.model import check_topic_name

# In place of an offset: the first that there is.
EARLIEST: Final = -2
# In place of an offset: behind the last that there is.
LATEST: Final = -1

# By which Kafka's source waits until a batch is worth it.
_WAITING: Final = ("minOffsetsPerTrigger", "maxTriggerDelay")
# What its users may have left in: only to be spelled as they did.
_KAFKAS: Final = (
    *_WAITING,
    "maxOffsetsPerTrigger",
    "groupIdPrefix",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    "useDeprecatedOffsetFetching",
)

T = TypeVar("T")
# By topic and partition: an offset, or milliseconds since 1970.
ByPartition = Mapping[str, Mapping[int, int]]


class Unmatched(StrEnum):
    """The policy for a partition without a record at or after its starting timestamp."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Subscribed:
    """Topics given by name."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Matching:
    """Topics whose names match a pattern."""

    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class AssignedPartitions:
    """Partitions given by topic and number."""

    partitions: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class AtOffset:
    """A position for all partitions: EARLIEST or LATEST."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Offsets by topic and partition."""

    offsets: ByPartition


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """A timestamp for all partitions, in milliseconds."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """Timestamps by topic and partition, in milliseconds."""

    timestamps_ms: ByPartition


Topics = Subscribed | Matching | AssignedPartitions
Position = AtOffset | AtOffsets | AtTimestamp | AtTimestamps


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options of the source."""

    bucket: str
    topics: Topics
    # None: not given. A batch then starts at the earliest offset, a stream at the latest.
    start: Position | None
    end: Position
    # Whether an end was given.
    bounded: bool = False
    unmatched: Unmatched = Unmatched.ERROR
    fail_on_data_loss: bool = True
    include_headers: bool = False
    # Least number of Spark partitions; 0: as many as the data suggest.
    min_partitions: int = 0
    # Most records of a Spark partition; 0: no limit.
    max_records_per_partition: int = 0
    # Most offsets of a stream's batch; 0: no limit.
    max_offsets_per_trigger: int = 0
    # Of a batch: the lives of topics that are meant, where that was found out before.
    topic_ids: Mapping[str, str] = field(default_factory=dict)


class GivenOptions:
    """The options as Spark hands them over; remembers which were asked for, so that the rest can be refused."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self._as_given = {name.lower(): name for name in given}
        self._known: dict[str, str] = {}

    def text(self, name: str) -> str | None:
        self._known[name.lower()] = name
        return self._given.get(name.lower())

    def parsed(self, name: str, parse: Callable[[str], T], default: T, wanted: str) -> T:
        """`parse` raises ValueError for what is not `wanted`."""
        value = self.text(name)
        if value is None:
            return default
        try:
            return parse(value)
        except ValueError as error:
            cause = f": {error}" if str(error) else ""
            raise _refused(name, value, f"is not {wanted}{cause}", f"Give {wanted}.") from None

    def refuse_others(
        self,
        passed_over: frozenset[str] = frozenset({"path"}),
        *,
        of: str = "source",
        instead: str = "Tidelog is read from its bucket: give `bucket`.",
    ) -> None:
        for name, value in self._given.items():
            if name in self._known or name in passed_over:
                continue
            shown = self._as_given[name]
            if shown == name:
                shown = _recased(name, (*self._known.values(), *_KAFKAS))
            if name.startswith("kafka."):
                raise _refused(shown, value, "is an option of Kafka's brokers", instead)
            near = difflib.get_close_matches(name, self._known, n=1)
            meant = f"Did you mean {self._known[near[0]]}?" if near else f"There are: {', '.join(sorted(self._known.values()))}."
            raise _refused(shown, value, f"is no option of this {of}", meant)


def _recased(name: str, known: Sequence[str]) -> str:
    """Restores the case of a name from the nearest known one: Spark passes all names in lower case."""
    spelled = {each.lower(): each for each in known}
    letters = list(name)
    for near in difflib.get_close_matches(name, spelled, n=1):
        for at, at_near, count in difflib.SequenceMatcher(None, name, near, autojunk=False).get_matching_blocks():
            letters[at : at + count] = spelled[near][at_near : at_near + count]
    return "".join(letters)


def parse_source_options(given: Mapping[str, str], *, stream: bool = False) -> SourceOptions:
    """Raises InvalidArgument, which names the option, its value, and what to do."""
    options = GivenOptions(given)
    bucket = options.text("bucket")
    if not bucket:
        raise InvalidArgument(
            "the option bucket is missing: where does the log lie?",
            hint='.option("bucket", "s3://BUCKET/PREFIX"), as its brokers have it.',
        )
    end = _position(options, "ending")
    found = SourceOptions(
        bucket=bucket,
        topics=_topics(options),
        start=_position(options, "starting"),
        end=end or AtOffset(LATEST),
        bounded=end is not None,
        unmatched=options.parsed("startingOffsetsByTimestampStrategy", Unmatched, Unmatched.ERROR, "error or latest"),
        fail_on_data_loss=options.parsed("failOnDataLoss", parse_bool, True, "true or false"),
        include_headers=options.parsed("includeHeaders", parse_bool, False, "true or false"),
        min_partitions=options.parsed("minPartitions", positive, 0, "a number from 1 on"),
        max_records_per_partition=options.parsed("maxRecordsPerPartition", positive, 0, "a number from 1 on"),
        max_offsets_per_trigger=options.parsed("maxOffsetsPerTrigger", positive, 0, "a number from 1 on") if stream else 0,
        topic_ids=options.parsed("topicIds", _ids, {}, 'JSON as {"orders":"1f…"}'),
    )
    for name in _WAITING if stream else ():
        if (value := options.text(name)) is not None:
            waits = 'To wait for more, set .trigger(processingTime="1 minute") on the query.'
            raise _refused(name, value, "is not built for this source", waits)
    options.refuse_others()
    return found


def _topics(options: GivenOptions) -> Topics:
    ways: dict[str, Callable[[str], Topics]] = {
        "subscribe": _subscribed,
        "subscribePattern": lambda pattern: Matching(re.compile(pattern)),
        "assign": lambda json: AssignedPartitions(_assigned(json)),
    }
    wanted = {
        "subscribe": "names of topics, with commas between them",
        "subscribePattern": "a regular expression",
        "assign": 'JSON as {"orders":[0,1]}',
    }
    found = {name: options.parsed(name, _or_value_error(parse), None, wanted[name]) for name, parse in ways.items()}
    chosen = [topics for topics in found.values() if topics is not None]
    if len(chosen) != 1:
        given = [name for name, topics in found.items() if topics is not None]
        problem = f"{' and '.join(given)} are given" if given else "none of subscribe, subscribePattern and assign is given"
        raise InvalidArgument(f"which topics? {problem}", hint='Give one of them, as .option("subscribe", "orders").')
    return chosen[0]


def _or_value_error(parse: Callable[[str], Topics]) -> Callable[[str], Topics | None]:
    def parse_or_raise(value: str) -> Topics | None:
        try:
            return parse(value)
        except (re.error, InvalidArgument) as error:
            raise ValueError(str(error)) from None

    return parse_or_raise


def _subscribed(value: str) -> Subscribed:
    names = [name.strip() for name in value.split(",") if name.strip()]
    if not names:
        raise ValueError("it names none")
    return Subscribed(tuple(dict.fromkeys(check_topic_name(name) for name in names)))


def _assigned(json: str) -> dict[str, tuple[int, ...]]:
    try:
        found = msgspec.json.decode(json, type=dict[str, list[int]])
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    if not any(found.values()) or any(number < 0 for numbers in found.values() for number in numbers):
        raise ValueError("it names no partition, or one below 0")
    return {check_topic_name(name): tuple(dict.fromkeys(numbers)) for name, numbers in found.items()}


def _position(options: GivenOptions, which: str) -> Position | None:
    """Returns the most exact of the given positions; checks all of them."""
    is_end = which == "ending"
    offsets_wanted = '"latest", or JSON as {"orders":{"0":23,"1":-1}}'
    if not is_end:
        offsets_wanted = '"earliest", "latest", or JSON as {"orders":{"0":23,"1":-2}}'
    by_timestamp_wanted = 'JSON as {"orders":{"0":1767225600000}}'
    timestamp = options.parsed(f"{which}Timestamp", _timestamp, None, "milliseconds since 1970")
    timestamps = options.parsed(f"{which}OffsetsByTimestamp", _timestamps, None, by_timestamp_wanted)
    offsets = options.parsed(f"{which}Offsets", end_offsets if is_end else start_offsets, None, offsets_wanted)
    return timestamp or timestamps or offsets


def _timestamp(value: str) -> Position | None:
    return AtTimestamp(_not_negative(value))


def _timestamps(json: str) -> Position | None:
    return AtTimestamps(_by_partition(json, lowest=0))


def start_offsets(value: str) -> Position:
    if value.lower() in {"earliest", "latest"}:
        return AtOffset(EARLIEST if value.lower() == "earliest" else LATEST)
    return AtOffsets(_by_partition(value, lowest=EARLIEST))


def end_offsets(value: str) -> Position:
    if value.lower() == "latest":
        return AtOffset(LATEST)
    if value.lower() == "earliest":
        raise ValueError("nothing would be read")
    return AtOffsets(_by_partition(value, lowest=LATEST))


def _by_partition(json: str, *, lowest: int) -> dict[str, dict[int, int]]:
    try:
        found = msgspec.json.decode(json, type=dict[str, dict[int, int]])
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    for topic, partitions in found.items():
        for partition, number in partitions.items():
            if partition < 0 or number < lowest:
                raise ValueError(f"{number} for {topic}/{partition}")
    return found


def _ids(json: str) -> Mapping[str, str]:
    try:
        return msgspec.json.decode(json, type=dict[str, str])
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def parse_bool(value: str) -> bool:
    if value.lower() not in {"true", "false"}:
        raise ValueError
    return value.lower() == "true"


def _not_negative(value: str) -> int:
    number = int(value)
    if number < 0:
        raise ValueError
    return number


def positive(value: str) -> int:
    number = int(value)
    if number < 1:
        raise ValueError
    return number


def _refused(name: str, value: str, why: str, hint: str) -> InvalidArgument:
    shown = value if len(value) <= 120 else f"{value[:120]}…"
    return InvalidArgument(f"option {name}: {shown!r} {why}", hint=hint)
