"""Reads records of topics without a group: fetches ahead from leaders or closer replicas, and hands records out in order.

    consumer.py ─▶ topic_reader.py ─▶ subscription.py ─▶ fetcher.py ─▶ prefetch_buffer.py

Entry: `Consumer` in consumer.py. Must not import the group.
"""
