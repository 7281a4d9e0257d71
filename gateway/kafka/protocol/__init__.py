"""The codec of Kafka's wire protocol: requests are decoded, responses encoded. Pure.

    tables/*.txt ─▶ schema.py ─▶ emitter.py ─▶ generate.py    `make kafka-protocol`, when a table has changed
                                                   │ writes
        apis.py ─▶ hot_messages.py | client_messages.py | admin_messages.py ─▶ primitives.py

shortened_produce.py drops the records of a Produce request that is too long, as it arrives.

Entry: `decode_header` and `APIS` in apis.py. `APIS[key].decode(frame, offset, version)` returns a message object;
`APIS[key].encode(message, version, correlation_id)` returns the buffers of the whole response frame.

Invariants:
- Records are never copied: those of a request are a slice of its frame, those of a response the caller's own buffers.
- Bytes that do not follow the tables raise MalformedFrame, before memory is taken for what they claim.
- hot_messages.py and primitives.py behave alike compiled and uncompiled; the .pxd files beside them only add C types.
- Fields that a version does not have are at their defaults in what is decoded, and are left out of what is encoded.

Must not import the listener, or anything of gateway/ outside of this package.
"""
