"""Implements the Produce stream: reads messages within a budget of bytes, appends them, and answers in order.

    receive_budget.py ─▶ request_decoder.py ─▶ appender.py ─▶ gateway/records ─▶ service.py (answers)

Entry: `GrpcProduce` in service.py. record_decoder.py decodes structured records; open_streams.py tracks the open streams, so that a
shutdown can wait for clients to leave.

Invariants:
- Answers leave in the order of their requests.
- Record batches stay views of the received message until the log takes them.
- Messages that wait for the log's buffer take at most grpc_waiting_bytes_max.

Asks the broker only through gateway/api.py. Must not import gateway/http, gateway/kafka or the other services of gateway/grpc.
"""
