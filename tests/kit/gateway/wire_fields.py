"""Bytes that are protobuf, or nearly: fields known and unknown, nested, of every form, numbers in more bytes than they need."""

from __future__ import annotations

from hypothesis import strategies as st

_VALUES = st.sampled_from([0, 1, 2, 3, 127, 128, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]) | st.integers(
    0, 2**64 - 1
)
_PADDING = st.sampled_from([0] * 12 + [1, 2, 3, 4, 5, 9])
_VARINT, _FIXED64, _LENGTH, _GROUP, _GROUP_END, _FIXED32 = range(6)
_FORMS = st.sampled_from([_VARINT, _LENGTH] * 6 + [_FIXED64, _FIXED32, _GROUP, _GROUP_END])
_NUMBERS = st.sampled_from([1, 2, 3, 4, 5, 6] * 4 + [0, 7, 15, 16, 2**29 - 1])
_TEXT = st.sampled_from([b"", b"abc", b"\xff", "é".encode()]) | st.binary(max_size=6)


def varint(value: int, padding: int = 0) -> bytes:
    """LEB128, `padding` bytes longer than it need be."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    for _ in range(padding):
        encoded[-1] |= 0x80
        encoded.append(0)
    return bytes(encoded)


@st.composite
def _field(draw: st.DrawFn, contents: st.SearchStrategy[bytes]) -> bytes:
    form = draw(_FORMS)
    tag = varint(draw(_NUMBERS) << 3 | form, draw(_PADDING))
    if form == _VARINT:
        return tag + varint(draw(_VALUES), draw(_PADDING))
    if form == _LENGTH:
        content = draw(contents)
        size = max(0, len(content) + draw(st.sampled_from([0] * 30 + [-1, 1, 2**32])))
        return tag + varint(size, draw(_PADDING)) + content
    return tag + bytes({_FIXED64: 8, _FIXED32: 4}.get(form, 0))


def _message(contents: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.lists(_field(contents), max_size=4).map(b"".join)


# A message with messages in it, four deep.
wire_fields = _message(_TEXT | _message(_TEXT | _message(_TEXT | _message(_TEXT))))
