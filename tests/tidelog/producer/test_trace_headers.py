from __future__ import annotations

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from metadata.errors import InvalidArgument
from tidelog.producer.trace_headers import traceparent_headers
from tidelog.settings import ClientSettings

SPAN = NonRecordingSpan(SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, False, TraceFlags(1)))
VALUE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_the_present_span_is_named_behind_the_records_own_headers() -> None:
    with use_span(SPAN):
        assert traceparent_headers()(()) == (("traceparent", VALUE),)
        assert traceparent_headers()((("a", b"1"),)) == (("a", b"1"), ("traceparent", VALUE))


def test_a_header_that_is_there_is_kept() -> None:
    own = (("traceparent", b"mine"),)
    with use_span(SPAN):
        assert traceparent_headers()(own) == own


def test_without_a_span_there_is_no_header() -> None:
    assert traceparent_headers()((("a", b"1"),)) == (("a", b"1"),)


def test_trace_headers_must_be_on_or_off() -> None:
    with pytest.raises(InvalidArgument, match="trace_headers"):
        ClientSettings(trace_headers="yes")  # type: ignore[arg-type]
