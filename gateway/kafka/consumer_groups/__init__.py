"""Serves the consumer group protocol of KIP-848 on the Kafka listeners.

    heartbeats.py     ConsumerGroupHeartbeat   members join, follow their assignment, and leave
    descriptions.py   ConsumerGroupDescribe    operators see members, with what they own and what they shall own

The decisions are in metadata/groups/reconciliation; gateway/groups coordinates. Must not import the other listeners.
"""
