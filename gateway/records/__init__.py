"""Appends and decodes records for all listeners: targets, partitioning, idempotency, budgets of responses.

    listener ─▶ partitioning.py ─▶ append.py ─▶ gateway/routing ─▶ outcomes

Entry: append.py. keyed_produce.py and idempotency_key.py plan requests with an Idempotency-Key; batch_decoder.py opens fetched
batches; response_budget.py bounds the memory of responses. refused_batches.py answers gaps behind a refused batch of a Kafka
producer. oversized_requests.py warns of Kafka producers whose requests are too long.

Invariants:
- A request with an Idempotency-Key is written at most once in its topic, at whichever broker it is repeated.
- Records of one partition are appended in the order of the request; nothing follows a refused batch of the same partition.

Must not import a listener or gateway/groups.
"""
