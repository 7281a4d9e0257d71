"""Implements the Produce stream: reads messages within a budget of bytes, appends them, and answers in order.

    receive_budget.py ─▶ request_decoder.py ─▶ appender.py ─▶ gateway/records ─▶ service.py (answers)

Entry: `GrpcProduce` in service.py. record_decoder.py decodes structured records; open_streams.py knows the open streams, so that a
shutdown can wait for clients to leave.

Invariants:
- Answers leave in the order of their requests.
- Record batches stay views of the received message until the log takes them.
"""
