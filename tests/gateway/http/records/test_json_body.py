from __future__ import annotations

import base64
import json
import re
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.records.json_body import ParsedRecords, parse_json, parse_ndjson
from gateway.records.partitioning import RECORDS_MAX
from metadata.errors import InvalidArgument, TooLarge

NOW = 1_750_000_000_000


MIB = 1 << 20
BODY_BYTES = 16 * MIB


def parsed(records: list[dict[str, Any]]) -> ParsedRecords:
    return parse_json(json.dumps({"records": records}).encode(), now_ms=NOW, headers_max=10)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
record_bodies = st.fixed_dictionaries(
    {},
    optional={
        "key": json_values,
        "value": json_values,
        "headers": st.dictionaries(st.text(max_size=5), json_values, max_size=3),
        "partition": st.none() | st.integers(0, 9),
        "timestamp": st.integers(0, 2**40),
    },
)


def stored(value: Any) -> bytes | None:
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    return json.dumps(value, separators=(",", ":")).encode()


@given(st.lists(record_bodies, min_size=1, max_size=6))
def test_every_way_through_stores_the_same_and_what_was_sent(bodies: list[dict[str, Any]]) -> None:
    """Text records, plain records and all others are read by different decoders."""
    expected = [
        (
            stored(body.get("key")),
            stored(body.get("value")),
            tuple((name, stored(value)) for name, value in body.get("headers", {}).items()),
            body.get("timestamp", NOW),
        )
        for body in bodies
    ]
    asked = [body.get("partition") for body in bodies]
    for found in (
        parsed(bodies),
        parse_ndjson(b"\n".join(json.dumps(body).encode() for body in bodies), now_ms=NOW, headers_max=10),
        parsed([*bodies, {"partition": 1}]),  # forces the general decoder
    ):
        assert list(found.records[: len(bodies)]) == expected
        assert (found.own_partitions or [None] * len(bodies))[: len(bodies)] == asked


def test_no_list_of_partitions_is_made_if_no_record_names_one() -> None:
    assert parsed([{"value": 1}, {"headers": {"a": 1}}]).own_partitions is None
    assert parsed([{"value": 1, "partition": 2}, {}]).own_partitions == [2, None]


def test_bytes_come_as_base64() -> None:
    data = base64.b64encode(b"\x00\xff").decode()
    assert parsed([{"key": {"type": "binary", "data": data}, "value": {"type": "binary", "data": data}}]).records[0][:2] == (
        b"\x00\xff",
        b"\x00\xff",
    )
    with pytest.raises(InvalidArgument, match=r"records\[1\].*base64"):
        parsed([{}, {"value": {"type": "binary", "data": "?"}}])


def test_headers_as_a_list_keep_their_order_and_their_duplicates() -> None:
    headers = [{"key": "b", "value": "1"}, {"key": "a"}, {"key": "b", "value": {"x": 2}}]
    assert parsed([{"headers": headers}]).records[0][2] == (("b", b"1"), ("a", None), ("b", b'{"x":2}'))


def test_numbers_keep_their_text() -> None:
    body = b'{"records":[{"value": 1.10},{"value": 123456789012345678901234567890}]}'
    found = parse_json(body, now_ms=NOW, headers_max=1)
    assert [record[1] for record in found.records] == [b"1.10", b"123456789012345678901234567890"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", r"the body is empty \(byte 0\)"),
        (b"{", r"ends too early \(byte 1\)"),
        (b'{"records":[{"value":nul}]}', r"invalid character \(byte 25\)"),
        (b'{"records":[{"value":1,}]}', r"trailing comma.*byte"),
        (b'{"records":[]} x', r"trailing characters \(byte 16\)"),
        (b'{"records":[{"value":"\xff"}]}', r"not UTF-8 \(byte 22\)"),
        (b'{"records":[{"value":"\\ud800"}]}', r"half of a surrogate pair, which can't be stored as UTF-8"),
        (b'{"records":[{"valeu":1}]}', r"^records\[0\] has a field 'valeu' that is not known$"),
        (b'{"records":[{}],"topic":"x"}', r"^the body has a field 'topic' that is not known$"),
        (b'{"records":{}}', r"^records must be a list; it is an object$"),
        (b'{"records":[{},1]}', r"^records\[1\] must be an object; it is a whole number$"),
        (b'{"records":[{"partition":"1"}]}', r"^records\[0\]\.partition must be a whole number or null; it is a string$"),
        (b'{"records":[{"partition":1.5}]}', r"^records\[0\]\.partition must be .*; it is a number with a point or an exponent$"),
        (b'{"records":[{"partition":1e400}]}', r"^records\[0\]\.partition is not valid: number out of range$"),
        (
            b'{"records":[{"partition":' + b"9" * 5000 + b"}]}",
            r"^records\[0\]\.partition is not valid: integer value out of range$",
        ),
        (b'{"records":[{"headers":[{"value":1}]}]}', r"^records\[0\]: headers\[0\] lacks the field 'key'$"),
        (b'{"records":[{"headers":[{"key":1}]}]}', r"^records\[0\]: headers\[0\]\.key must be a string; it is a whole number$"),
        (b'{"records":[{},{"headers":"x"}]}', r"^records\[1\]: headers must be an object, a list or null; it is a string$"),
        (b'{"records":[{"headers":{"a":nul}}]}', r"byte"),
        (b"[]", r"^the body must be an object; it is a list$"),
        (b"{}", r"^the body lacks the field 'records'$"),
        (b'{"records":[]}', "no records"),
        (b'{"records":[{"value":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}", "nested too deeply"),
        (b'{"records":[{"headers":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}]}", "nested too deeply"),
        (b"[" * 1_000_000, "must be an object; it is a list"),
    ],
)
def test_an_error_in_the_body_is_named_by_its_position(body: bytes, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        parse_json(body, now_ms=NOW, headers_max=10)


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (b'[{"value":1}]', r'Send \{"records": \[.*application/x-ndjson'),
        (b'{"value":1}', r'Send \{"records": \['),
        (b'{"records":[]}', r'Send \{"records": \['),
        (b'{"records":[{"value":1,}]}', r'Send \{"records": \['),
        (b'{"records":[7]}', r'A record is an object: \{"key"'),
        (b'{"records":[{"valeu":1}]}', "Did you mean 'value'?"),
        (b'{"records":[{"topic":1}]}', "key, value, headers, partition, timestamp"),
        (b'{"records":[{"partition":"1"}]}', '"partition": 0'),
        (b'{"records":[{"timestamp":"now"}]}', '"timestamp": 1750000000000'),
        (b'{"records":[{"headers":1}]}', '"headers": {"trace": "a1"}'),
        (b'{"records":[{"value":' + b"[" * 5000 + b"]" * 5000 + b"}]}", "900 levels"),
    ],
)
def test_a_body_that_is_wrong_is_refused_with_an_example_of_what_is_right(body: bytes, hint: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        parse_json(body, now_ms=NOW, headers_max=10)
    assert re.search(hint, refusal.value.hint), refusal.value.hint


def test_an_ndjson_body_that_is_not_one_record_per_line_gets_a_hint() -> None:
    with pytest.raises(InvalidArgument, match="line 1 has a field 'records' that is not known") as refusal:
        parse_ndjson(b'{"records":[{"value":1}]}', now_ms=NOW, headers_max=10)
    assert "application/json" in refusal.value.hint
    with pytest.raises(InvalidArgument, match=r"line 1 is not JSON: trailing characters") as refusal:
        parse_ndjson(b"{} {}", now_ms=NOW, headers_max=10)
    assert "one record per line" in refusal.value.hint


def test_a_wrong_line_is_named_by_its_number() -> None:
    for body, said in (
        (b'{"value":1}\n\n{"valeu":2}\n', "line 3.*valeu"),
        (b'{"value":1}\n{"value":\n', r"line 2.*byte 9"),
        (b'{"value":1} {"value":2}\n{}', r"line 1.*trailing"),
        (b'\n{"partition":"x"}', r"^line 2: partition must be a whole number or null; it is a string$"),
        (b'{}\n{"headers":[{"key":1}]}', r"^line 2: headers\[0\]\.key must be a string"),
        (b"{}\n{}\n7", r"^line 3 must be an object; it is a whole number$"),
        (b"\n\n", "no records"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            parse_ndjson(body, now_ms=NOW, headers_max=10)


def test_empty_lines_and_carriage_returns_are_skipped() -> None:
    found = parse_ndjson(b'\r\n{"value":"a"}\r\n\n  \n{"value":"b"}', now_ms=NOW, headers_max=10)
    assert [record[1] for record in found.records] == [b"a", b"b"]


@pytest.mark.slow
def test_too_many_headers_or_records_are_refused() -> None:
    with pytest.raises(TooLarge, match=r"records\[1\]: it has 11 headers; at most 10 are accepted"):
        parsed([{}, {"headers": {str(number): 1 for number in range(11)}}])
    with pytest.raises(TooLarge, match=rf"{RECORDS_MAX} (are accepted|records)$"):
        parse_json(b'{"records":[' + b"{}," * RECORDS_MAX + b"{}]}", now_ms=NOW, headers_max=10)
    with pytest.raises(TooLarge, match=rf"{RECORDS_MAX} (are accepted|records)$"):
        parse_ndjson(b"{}\n" * (RECORDS_MAX + 1), now_ms=NOW, headers_max=10)
    with pytest.raises(TooLarge, match=rf"{RECORDS_MAX} (are accepted|records)$"):
        parse_ndjson(b"\n" * (3 * RECORDS_MAX), now_ms=NOW, headers_max=10)
    with pytest.raises(TooLarge, match=r"^line 401: the request has 401000 headers up to this record; at most 400000 are accepted"):
        parse_ndjson(b'{"headers":[%b]}\n' % b",".join([b'{"key":"a"}'] * 1000) * 500, now_ms=NOW, headers_max=1000)


# ── what a body may take of memory ──────────────────────────────────────────────────────────────────────────────────────


def filled(head: bytes, unit: bytes, tail: bytes) -> bytes:
    return head + unit * ((BODY_BYTES - len(head) - len(tail)) // len(unit)) + tail


GREEDY: dict[str, tuple[Callable[..., ParsedRecords], Callable[[], bytes]]] = {
    "empty records": (parse_json, lambda: filled(b'{"records":[', b"{},", b"{}]}")),
    "empty records behind text with a bracket": (parse_json, lambda: filled(b'{"records":[{"value":"]}\\""},', b"{},", b"{}]}")),
    "empty records before a syntax error": (parse_json, lambda: filled(b'{"records":[', b"{},", b"")),
    "numbers in place of records": (parse_json, lambda: filled(b'{"records":[', b"1,", b"1]}")),
    "records with a field": (parse_json, lambda: filled(b'{"records":[', b'{"partition":0},', b"{}]}")),
    "headers of one record": (parse_json, lambda: filled(b'{"records":[{"headers":[', b'{"key":""},', b'{"key":""}]}]}')),
    "named headers of one record": (
        parse_json,
        lambda: b'{"records":[{"headers":{' + b",".join(b'"%x":0' % number for number in range(1_500_000)) + b"}}]}",
    ),
    "headers of all records": (
        parse_json,
        lambda: filled(b'{"records":[', b'{"headers":{' + b",".join(b'"%x":0' % number for number in range(900)) + b"}},", b"{}]}"),
    ),
    "arrays in arrays": (parse_json, lambda: filled(b'{"records":[{"value":', b"[", b"")),
    "objects in objects": (parse_json, lambda: filled(b'{"records":[{"value":', b'{"":', b"")),
    "brackets in a string": (parse_json, lambda: filled(b'{"records":[{"value":"', b'\\"{', b'"}]}')),
    "a string that is wide in memory": (parse_json, lambda: filled(b'{"records":[{"value":"\xf0\x9f\x92\xa5', b"a", b'"}]}')),
    "line breaks": (parse_ndjson, lambda: b"\n" * BODY_BYTES),
    "empty records in lines": (parse_ndjson, lambda: filled(b"", b"{}\n", b"")),
    "empty records in one line": (parse_ndjson, lambda: filled(b"", b"{} ", b"")),
    "as many lines as are taken": (parse_ndjson, lambda: filled(b"", b'{"value":"' + b"x" * 70 + b'"}\n', b"")),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", GREEDY)
def test_no_body_takes_more_than_some_times_its_bytes(kind: str) -> None:
    """16 MiB of `{}` made five million objects, 650 MiB, before they were counted."""
    parse, make = GREEDY[kind]
    body = make()
    assert len(body) <= BODY_BYTES
    tracemalloc.start()
    try:
        with suppress(InvalidArgument, TooLarge):
            parse(body, now_ms=NOW, headers_max=1000)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 9 * BODY_BYTES, f"{peak_bytes / MIB:.0f} MiB"


def test_short_records_are_taken_up_to_the_bound_whatever_they_hold() -> None:
    """More brackets than records are taken, but in strings and in values."""
    nested = b'{"value":{"a":[{},{},{}],"b":"}{{"}}'
    body = b'{"records":[' + b",".join([nested] * 60_000) + b"]}"
    assert len(parse_json(body, now_ms=NOW, headers_max=10).records) == 60_000
    lines = parse_ndjson(b"\n".join([nested] * 60_000), now_ms=NOW, headers_max=10)
    assert len(lines.records) == 60_000
    assert (
        len(parse_json(b'{"records":[' + b"{}," * (RECORDS_MAX - 1) + b"{}]}", now_ms=NOW, headers_max=10).records) == RECORDS_MAX
    )


@given(st.binary(max_size=40))
def test_any_bytes_are_records_or_a_clear_refusal(body: bytes) -> None:
    for parse in (parse_json, parse_ndjson):
        with suppress(InvalidArgument):
            assert parse(body, now_ms=NOW, headers_max=10).records
