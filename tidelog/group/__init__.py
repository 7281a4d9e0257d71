"""Reads records as a member of a consumer group: membership, positions, commits. The member's states are in metadata/group_member.

Entry: `GroupConsumer` in consumer.py; coordinator_client.py calls the coordinator.
"""
