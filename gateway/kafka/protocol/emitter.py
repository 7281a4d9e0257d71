"""Emits Python source for definitions, and the C types with which Cython compiles it. Pure.

Each struct becomes a class with slots, and `_read_NAME(reader, version)` or `_write_NAME(writer, message, version)` as needed.
Each request becomes `decode_NAME`, each response `encode_NAME`. A client, as in tests, needs the other direction.

The .py is Python that needs no compiler. The .pxd beside it makes classes and functions those of C, and changes no behaviour.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gateway.kafka.protocol.schema import INTEGERS, Definition, Field, Message, Struct, Versions, snake_case

_PYTHON_TYPES: Final = {
    **dict.fromkeys(INTEGERS, "int"),
    "bool": "bool",
    "float64": "float",
    "uuid": "bytes",
    "string": "str",
    "bytes": "bytes",
}
_C_TYPES: Final = {
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "bool": "bint",
    "float64": "double",
}
_METHODS: Final = {**dict.fromkeys(INTEGERS), "bool": "boolean", "bytes": "octets"}
_ZEROS: Final = {
    **dict.fromkeys(INTEGERS, "0"),
    "bool": "False",
    "float64": "0.0",
    "uuid": "ZERO_UUID",
    "string": '""',
    "bytes": 'b""',
    "records": "()",
}


# Structs of responses whose handlers encode them one by one: an array of them also takes encoded elements.
PIECES: Final = frozenset({"DescribeConfigsResult"})


class Emitter:
    """Emits the source of the structs of one message, line by line."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self.is_response = message.name.endswith("Response")
        self.structs = [*message.structs.values(), message.root]

    def classes(self) -> Iterator[str]:
        for struct in self.structs:
            yield from self._class(struct)

    def c_classes(self) -> Iterator[str]:
        for struct in self.structs:
            yield from ("", "", "@cython.final", f"cdef class {struct.class_name}:")
            for each in struct.fields:
                yield f"    cdef public {self._c_type(each)} {each.attribute}"
                if self._has_size(each):
                    yield f"    cdef public Py_ssize_t {each.attribute}_size_bytes"

    def readers(self) -> Iterator[str]:
        for struct in self.structs:
            yield from self._reader(struct)

    def c_readers(self) -> Iterator[str]:
        for struct in self.structs:
            name = struct.class_name
            yield ""
            yield f"@cython.locals(message={name}, flexible=bint, count=Py_ssize_t, tag=Py_ssize_t, end=Py_ssize_t, _=Py_ssize_t)"
            yield f"cdef {name} _read_{name}(Reader reader, int version)"

    def writers(self) -> Iterator[str]:
        for struct in self.structs:
            yield from self._writer(struct)
            if struct.class_name in PIECES:
                yield from _encode_piece(struct.class_name)

    def c_writers(self) -> Iterator[str]:
        for struct in self.structs:
            name = struct.class_name
            yield ""
            yield "@cython.locals(flexible=bint, tag_count=int, start=Py_ssize_t)"
            yield f"cdef bint _write_{name}(Writer writer, {name} message, int version) except -1"

    # Classes

    def _class(self, struct: Struct) -> Iterator[str]:
        parameters = []
        names = []
        body = []
        for each in struct.fields:
            name, kind, default = each.attribute, self.python_type(each), self._constructor_default(each)
            if self._is_made(each):
                parameters.append(f"{name}: {kind} | None = None")
                body.append(f"self.{name} = {self._class_name(each.type)}() if {name} is None else {name}")
            else:
                parameters.append(f"{name}: {kind} = {default}")
                body.append(f"self.{name} = {name}")
            names.append(name)
            if self._has_size(each):
                parameters.append(f"{name}_size_bytes: int = -1")
                body.append(f"self.{name}_size_bytes = {name}_size_bytes")
                names.append(f"{name}_size_bytes")
        yield from ("", "", f"class {struct.class_name}:")
        slots = ", ".join(f'"{name}"' for name in sorted(names))
        yield f"    __slots__ = ({slots}{',' if len(names) == 1 else ''})"
        yield ""
        if names:
            yield f"    def __init__(self, *, {', '.join(parameters)}) -> None:"
            yield from (f"        {line}" for line in body)
        else:
            yield "    def __init__(self) -> None:"
            yield "        pass"

    def python_type(self, each: Field) -> str:
        if each.type == "records":
            kind = "Sequence[Buffer]" if self.is_response else "memoryview"
        elif each.is_struct:
            kind = self._class_name(each.type)
        else:
            kind = _PYTHON_TYPES[each.type]
        if each.is_array:
            kind = f"Sequence[{kind} | bytes]" if self._is_piece(each) else f"Sequence[{kind}]"
        return f"{kind} | None" if self._may_be_none(each) else kind

    def _c_type(self, each: Field) -> str:
        return "object" if each.is_array else _C_TYPES.get(each.type, "object")

    def _class_name(self, struct: str) -> str:
        return self.message.structs[struct].class_name

    def _may_be_none(self, each: Field) -> bool:
        """Returns whether the attribute may be None. An absent tagged struct is None."""
        request_records = each.type == "records" and not self.is_response
        return each.nullable is not None or each.default == "null" or self._is_absent_as_none(each) or request_records

    def _is_absent_as_none(self, each: Field) -> bool:
        return each.is_struct and not each.is_array and each.tag is not None

    def _is_made(self, each: Field) -> bool:
        """Returns whether the constructor creates the struct with its defaults: if it is neither nullable nor tagged."""
        return each.is_struct and not each.is_array and not self._may_be_none(each)

    def _has_size(self, each: Field) -> bool:
        """Returns whether the field has a size attribute, as records of a response do: a list of buffers and their total size.

        Records of a request are one slice of its frame.
        """
        return each.type == "records" and self.is_response

    def _constructor_default(self, each: Field) -> str:
        if each.default == "null" or self._is_absent_as_none(each):
            return "None"
        if each.is_array:
            return "()"
        if each.is_struct:
            return "None"
        if each.type == "records":
            return "()" if self.is_response else "None"
        if each.default is None:
            return _ZEROS[each.type]
        if each.type in INTEGERS:
            return str(int(each.default, 0))
        return {"true": "True", "false": "False"}.get(each.default, each.default)

    def _absent(self, each: Field) -> str:
        """Returns the value that a decoder sets if the version has no such field."""
        return f"{self._class_name(each.type)}()" if self._is_made(each) else self._constructor_default(each)

    # Reading

    def _reader(self, struct: Struct) -> Iterator[str]:
        name = struct.class_name
        yield from ("", "", f"def _read_{name}(reader: Reader, version: int) -> {name}:")
        yield f"    message = {name}.__new__({name})"
        if self._uses_flexible(struct):
            yield f"    flexible = {self._flexible()}"
        tagged = [each for each in struct.fields if each.tag is not None]
        for each in struct.fields:
            if each.tag is None:
                condition = within(each.versions, self.message.versions)
                if condition == "True":
                    yield from indented(self._read_field(each, "flexible"), 1)
                    continue
                yield f"    if {condition}:"
                yield from indented(self._read_field(each, "flexible"), 2)
                yield "    else:"
                yield from indented(self._read_absent(each), 2)
            else:
                yield from indented(self._read_absent(each), 1)
        if self._flexible() != "False":
            yield from self._read_tags(tagged)
        yield "    return message"

    def _read_absent(self, each: Field) -> Iterator[str]:
        yield f"message.{each.attribute} = {self._absent(each)}"
        if self._has_size(each):
            yield f"message.{each.attribute}_size_bytes = -1"

    def _read_tags(self, tagged: Sequence[Field]) -> Iterator[str]:
        depth = 1
        if self._flexible() != "True":
            yield "    if flexible:"
            depth = 2
        if not tagged:
            yield from indented(["reader.skip_tags()"], depth)
            return
        yield from indented(["count = reader.uvarint()", "for _ in range(count):"], depth)
        lines = ["tag = reader.uvarint()", "end = reader.tag_end()"]
        word = "if"
        for each in tagged:
            condition = within(each.versions, self.message.versions)
            lines.append(f"{word} tag == {each.tag}{'' if condition == 'True' else f' and {condition}'}:")
            lines += indented(self._read_field(each, "True"), 1)
            lines.append("    reader.check_tag_end(end)")
            word = "elif"
        yield from indented([*lines, "else:", "    reader.skip_tag(end)"], depth + 1)

    def _read_field(self, each: Field, flexible: str) -> Iterator[str]:
        target = f"message.{each.attribute}"
        nullable = "False" if each.nullable is None else within(each.nullable, each.versions)
        if each.is_array:
            least = self._bytes_min(replace_array(each))
            arguments = f"({flexible}, {least})"
            if nullable == "False":
                yield f"count = reader.array_length{arguments}"
            elif nullable == "True":
                yield f"count = reader.nullable_array_length{arguments}"
            else:
                yield f"count = reader.nullable_array_length{arguments} if {nullable} else reader.array_length{arguments}"
            one = self._read_one(each, flexible, "False")
            yield f"{target} = " + ("" if nullable == "False" else "None if count < 0 else ") + f"[{one} for _ in range(count)]"
        elif each.is_struct and nullable != "False":
            present = "reader.present()" if nullable == "True" else f"not ({nullable}) or reader.present()"
            yield f"{target} = {self._read_one(each, flexible, 'False')} if {present} else None"
        elif self._has_size(each):
            yield f"view = {self._read_one(each, flexible, nullable)}"
            yield f"{target} = None if view is None else [view]"
            yield f"{target}_size_bytes = -1 if view is None else len(view)"
        else:
            yield f"{target} = {self._read_one(each, flexible, nullable)}"

    def _read_one(self, each: Field, flexible: str, nullable: str) -> str:
        if each.is_struct:
            return f"_read_{self._class_name(each.type)}(reader, version)"
        method = _METHODS.get(each.type) or each.type
        if each.type not in ("string", "bytes", "records"):
            return f"reader.{method}()"
        if nullable == "False":
            return f"reader.{method}({flexible})"
        if nullable == "True":
            return f"reader.nullable_{method}({flexible})"
        return f"reader.nullable_{method}({flexible}) if {nullable} else reader.{method}({flexible})"

    # Writing

    def _writer(self, struct: Struct) -> Iterator[str]:
        name = struct.class_name
        yield from ("", "", f"def _write_{name}(writer: Writer, message: {name}, version: int) -> bool:")
        if self._uses_flexible(struct):
            yield f"    flexible = {self._flexible()}"
        for each in struct.fields:
            if each.tag is None:
                condition = within(each.versions, self.message.versions)
                if condition == "True":
                    yield from indented(self._write_field(each, "flexible"), 1)
                else:
                    yield f"    if {condition}:"
                    yield from indented(self._write_field(each, "flexible"), 2)
        if self._flexible() != "False":
            tagged = sorted((each for each in struct.fields if each.tag is not None), key=lambda each: each.tag or 0)
            lines = list(self._write_tags(tagged))
            if self._flexible() != "True":
                yield "    if flexible:"
                yield from indented(lines, 2)
            else:
                yield from indented(lines, 1)
        yield "    return True"

    def _write_tags(self, tagged: Sequence[Field]) -> Iterator[str]:
        if not tagged:
            yield "writer.uvarint(0)"
            return
        yield "tag_count = 0"
        for each in tagged:
            yield from (f"if {self._differs(each)}:", "    tag_count += 1")
        yield "writer.uvarint(tag_count)"
        for each in tagged:
            yield f"if {self._differs(each)}:"
            yield f"    start = writer.begin_tag({each.tag})"
            yield from indented(self._write_field(each, "True"), 1)
            yield "    writer.end_tag(start)"

    def _differs(self, each: Field) -> str:
        """Returns the condition under which a tagged field is written."""
        condition = within(each.versions, self.message.versions)
        default = self._constructor_default(each)
        value = f"message.{each.attribute}"
        if default == "None":
            differs = f"{value} is not None"
        elif default == "()":
            differs = f"{value} is None or len({value}) > 0" if each.nullable is not None else f"len({value}) > 0"
        elif each.type == "bool":
            differs = f"not {value}" if default == "True" else value
        else:
            differs = f"{value} != {default}"
        if condition == "True":
            return differs
        return f"{condition} and ({differs})" if " or " in differs else f"{condition} and {differs}"

    def _write_field(self, each: Field, flexible: str) -> Iterator[str]:
        value = f"message.{each.attribute}"
        nullable = "False" if each.nullable is None else within(each.nullable, each.versions)
        if each.is_array:
            collected = [
                f"writer.array_length(len({value}), {flexible})",
                f"for {each.attribute}_item in {value}:",
                *indented(self._write_item(each, f"{each.attribute}_item", flexible), 1),
            ]
            if nullable == "False":
                if self._may_be_none(each):
                    yield f"assert {value} is not None"
                yield from collected
            else:
                condition = f"{value} is None" + ("" if nullable == "True" else f" and {nullable}")
                yield from (f"if {condition}:", f"    writer.array_length(-1, {flexible})", "else:")
                if nullable != "True":
                    yield f"    assert {value} is not None"
                yield from indented(collected, 1)
        elif each.is_struct and nullable != "False":
            yield f"if {value} is None:"
            yield "    writer.present(False)"
            yield "else:"
            yield "    writer.present(True)"
            yield f"    {self._write_one(each, value, flexible, 'False')}"
        else:
            if nullable == "False" and self._may_be_none(each) and not self._is_absent_as_none(each):
                yield f"assert {value} is not None"
            if nullable in ("True", "False"):
                yield self._write_one(each, value, flexible, nullable)
            else:
                yield f"if {nullable}:"
                yield f"    {self._write_one(each, value, flexible, 'True')}"
                yield "else:"
                yield f"    assert {value} is not None"
                yield f"    {self._write_one(each, value, flexible, 'False')}"

    def _write_item(self, each: Field, value: str, flexible: str) -> Iterator[str]:
        written = self._write_one(each, value, flexible, "False")
        if self._is_piece(each):
            yield from (f"if isinstance({value}, bytes):", f"    writer.raw({value}, len({value}))", "else:", f"    {written}")
        else:
            yield written

    def _is_piece(self, each: Field) -> bool:
        return each.is_struct and each.is_array and self._class_name(each.type) in PIECES

    def _write_one(self, each: Field, value: str, flexible: str, nullable: str) -> str:
        if each.is_struct:
            return f"_write_{self._class_name(each.type)}(writer, {value}, version)"
        method = _METHODS.get(each.type) or each.type
        prefix = "nullable_" if nullable == "True" else ""
        if self._has_size(each):
            return f"writer.{prefix}{method}({value}, {value}_size_bytes, {flexible})"
        if each.type == "records":
            return f"writer.{prefix}octets({value}, {flexible})"
        if each.type in ("string", "bytes"):
            return f"writer.{prefix}{method}({value}, {flexible})"
        return f"writer.{method}({value})"

    # Versions

    def _flexible(self) -> str:
        return "False" if self.message.flexible is None else within(self.message.flexible, self.message.versions)

    def _uses_flexible(self, struct: Struct) -> bool:
        if self._flexible() not in ("True", "False"):
            return True
        return any(each.tag is None and (each.is_array or each.type in ("string", "bytes", "records")) for each in struct.fields)

    def _bytes_min(self, each: Field) -> int:
        """Returns the least bytes that a present field takes."""
        some_compact = self.message.flexible is not None
        if each.is_array:
            return 1 if some_compact else 4
        if each.is_struct:
            if each.nullable is not None:
                return 1
            struct = self.message.structs[each.type]
            size = sum(
                self._bytes_min(other) for other in struct.fields if other.tag is None and each.versions.within(other.versions)
            )
            return max(1, size + (self.message.flexible is not None and each.versions.within(self.message.flexible)))
        if each.type == "string":
            return 1 if some_compact else 2
        if each.type in ("bytes", "records"):
            return 1 if some_compact else 4
        return {**INTEGERS, "bool": 1, "float64": 8, "uuid": 16}[each.type]


def replace_array(each: Field) -> Field:
    """Returns the element of an array as a field."""
    return Field(each.name, each.type, False, each.versions, None, None, None, None)


def within(versions: Versions, known: Versions) -> str:
    """Returns the condition that `version`, which is one of `known`, is one of `versions`."""
    if known.within(versions):
        return "True"
    if versions.first <= known.first:
        return f"version <= {versions.last}"
    if versions.last >= known.last:
        return f"version >= {versions.first}"
    return f"{versions.first} <= version <= {versions.last}" if versions.first < versions.last else f"version == {versions.first}"


def indented(lines: Sequence[str] | Iterator[str], depth: int) -> list[str]:
    return ["    " * depth + line for line in lines]


def decode_function(message: Message) -> Iterator[str]:
    name = message.name
    first, last = message.versions.first, message.versions.last
    yield from (
        "",
        "",
        f"def decode_{snake_case(name)}(frame: Buffer, offset: int, version: int, elements_max: int = ELEMENTS_MAX) -> {name}:",
    )
    yield f"    if not {first} <= version <= {last}:"
    yield f'        raise MalformedFrame(f"{name} has versions {first} to {last}, not {{version}}")'
    yield "    reader = Reader(frame, offset, elements_max)"
    yield f"    message = _read_{name}(reader, version)"
    yield "    reader.finish()"
    yield "    return message"


def _encode_piece(name: str) -> Iterator[str]:
    yield from ("", "", f"def encode_{snake_case(name)}(message: {name}, version: int) -> bytes:")
    yield '    """Encodes one element, which the response takes in place of the struct."""'
    yield "    writer = Writer()"
    yield "    writer.int32(0)  # the length, which is not part of an element"
    yield f"    _write_{name}(writer, message, version)"
    yield '    return b"".join(writer.finish())[4:]'


def encode_function(definition: Definition) -> Iterator[str]:
    message = definition.response
    name = message.name
    first, last = message.versions.first, message.versions.last
    yield from ("", "", f"def encode_{snake_case(name)}(message: {name}, version: int, correlation_id: int) -> list[Buffer]:")
    yield f"    if not {first} <= version <= {last}:"
    yield f'        raise ValueError(f"{name} has versions {first} to {last}, not {{version}}")'
    yield "    writer = Writer()"
    yield "    writer.int32(0)"
    yield "    writer.int32(correlation_id)"
    flexible = "False" if message.flexible is None else within(message.flexible, message.versions)
    if definition.name == "ApiVersions":
        yield "    # A client that does not know the broker's versions yet reads header v0 (KIP-511)."
    elif flexible == "True":
        yield "    writer.uvarint(0)"
    elif flexible != "False":
        yield from (f"    if {flexible}:", "        writer.uvarint(0)")
    yield f"    _write_{name}(writer, message, version)"
    yield "    return writer.finish()"
