"""Defines the options of the sink and the columns that it writes. Pure.

    brokers               addresses, as `tidelog.connect` takes them
    bucket                the brokers' bucket: rows are staged there until their batch is complete
    topic                 else a column `topic` says it, row by row
    compression.type      none, gzip, snappy, lz4 or zstd; `compression` means the same
    writeId               a name of a batch write: who comes again with it writes nothing twice
    failOnDataLoss        of a stream: false goes on where a topic that it has written was deleted and made again
    producerExpiryMs      where brokers have another `producer_expiry_ms` than their default
    apiKeyFile, caFile, certFile, keyFile, tlsServerName
                          credentials for the brokers, as the SDK takes them; else the variables TIDELOG_API_KEY, TIDELOG_CA_FILE …
                          of the driver count. The driver alone talks to brokers, but for tasks whose rows name topics that it
                          could not know: these need the files, or the variables, and a way to the brokers where they run

    value                 binary or string                            needed
    key                   binary or string; null: none
    topic                 string                                      needed without the option
    partition             integer; null: by key (murmur2, as Kafka's clients)
    timestamp             timestamp; null or absent: when it is staged
    headers               array<struct<key: string, value: binary>>

Columns are those of Spark's Kafka sink, and `timestamp`. Names are compared without regard to case, as Spark does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from metadata.errors import InvalidArgument
from metadata.model import check_topic_name
from segments.records.compression import Codec
from spark.source.options import GivenOptions, parse_bool, positive

# As segments/settings.py has it.
PRODUCER_EXPIRY_MS: Final = 24 * 3_600_000
# Options that Spark hands to every sink.
PASSED_OVER: Final = frozenset({"path", "checkpointlocation", "queryname"})

# A key itself is no option: Spark shows options in its plans and pages.
CREDENTIALS: Final = {
    "apiKeyFile": "api_key_file",
    "caFile": "ca_file",
    "certFile": "cert_file",
    "keyFile": "key_file",
    "tlsServerName": "tls_server_name",
}

_WRITE_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_TYPES: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "key": (("binary", "string"), "binary or string"),
    "value": (("binary", "string"), "binary or string"),
    "topic": (("string",), "string"),
    "partition": (("tinyint", "smallint", "int", "bigint"), "int"),
    "timestamp": (("timestamp",), "timestamp"),
    "headers": (
        ("array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>"),
        "array<struct<key: string, value: binary>>",
    ),
}
COLUMNS: Final = tuple(_TYPES)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The parsed options of the sink."""

    brokers: str
    bucket: str
    # None: the column `topic` names it.
    topic: str | None
    codec: Codec = Codec.NONE
    # 32 hex digits; only for a batch write.
    write_id: str | None = None
    producer_expiry_ms: int = PRODUCER_EXPIRY_MS
    # Whether a stream ends where a topic that it has written was deleted and made again.
    fail_on_data_loss: bool = True
    # Settings of a client, by their names.
    credentials: tuple[tuple[str, str], ...] = ()


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Raises InvalidArgument, which names the option, its value, and what to do."""
    options = GivenOptions(given)
    brokers = (options.text("brokers") or "").strip()
    bucket = options.text("bucket")
    if not brokers:
        raise InvalidArgument(
            "the option brokers is missing: records go into a topic through its brokers",
            hint='.option("brokers", "http://HOST:8080"), or several with commas between them.',
        )
    if not bucket:
        raise InvalidArgument(
            "the option bucket is missing: rows are staged on the brokers' bucket, so that a task which Spark runs twice doubles "
            "nothing",
            hint='.option("bucket", "s3://BUCKET/PREFIX"), as its brokers have it. Executors write below spark/ there.',
        )
    found = SinkOptions(
        brokers=brokers,
        bucket=bucket,
        topic=options.parsed("topic", _topic, None, "the name of a topic"),
        codec=options.parsed("compression.type", _codec, options.parsed("compression", _codec, Codec.NONE, _CODECS), _CODECS),
        write_id=options.parsed("writeId", _write_id, None, "a name of 1 to 200 characters"),
        credentials=tuple((name, value) for option, name in CREDENTIALS.items() if (value := options.text(option))),
        fail_on_data_loss=options.parsed("failOnDataLoss", parse_bool, True, "true or false"),
        producer_expiry_ms=options.parsed("producerExpiryMs", positive, PRODUCER_EXPIRY_MS, "milliseconds, from 1 on"),
    )
    options.refuse_others(PASSED_OVER, of="sink", instead="Tidelog's brokers are reached by `brokers`.")
    return found


def check_columns(types: Sequence[tuple[str, str]], *, topic_is_given: bool) -> None:
    """`types`: name and simple type of each column, as Spark tells them. InvalidArgument."""
    seen: dict[str, str] = {}
    for name, kind in types:
        known = name.lower()
        if known not in _TYPES:
            columns = ", ".join(name for name, _ in types)
            raise InvalidArgument(
                f"the sink has no column {name!r}; the rows have {columns}",
                hint=f"It takes {', '.join(COLUMNS)}: leave others out with .select(…), or put them into the value, as "
                "to_json(struct(…)).",
            )
        if known in seen:
            raise InvalidArgument(
                f"the columns {seen[known]!r} and {name!r} are the same to the sink", hint="Leave one of them out."
            )
        seen[known] = name
        takes, wanted = _TYPES[known]
        if kind not in takes:
            raise InvalidArgument(f"the column {name} is {kind}; it must be {wanted}", hint=_CASTS.get(known, "Cast it."))
    if "value" not in seen:
        raise InvalidArgument(
            "there is no column value", hint='Name the one that is to be written: .withColumnRenamed("…", "value").'
        )
    if not topic_is_given and "topic" not in seen:
        raise InvalidArgument(
            "which topic? There is neither the option topic nor a column topic", hint='.option("topic", "orders")'
        )


_CASTS: Final = {
    "key": 'Cast it: .withColumn("key", col("key").cast("string")).',
    "value": 'Cast it, as .withColumn("value", col("value").cast("string")), or make JSON of a struct: to_json(col("value")).',
    "timestamp": 'Make a timestamp of it: timestamp_millis(col("timestamp")).',
}
_CODECS: Final = "none, gzip, snappy, lz4 or zstd"


def _topic(value: str) -> str:
    try:
        return check_topic_name(value)
    except InvalidArgument as error:
        raise ValueError(str(error)) from None


def _codec(value: str) -> Codec:
    name = "NONE" if value.lower() == "uncompressed" else value.upper()
    if name not in Codec.__members__:
        raise ValueError
    return Codec[name]


def _write_id(value: str) -> str:
    if _WRITE_ID.fullmatch(value):
        return value
    if not 0 < len(value) <= 200:
        raise ValueError
    return hashed_write_id(value)


def hashed_write_id(name: str) -> str:
    return blake2b(name.encode(), digest_size=16, person=b"tidelog-write").hexdigest()
