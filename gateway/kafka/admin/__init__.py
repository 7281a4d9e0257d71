"""Answers the administrative APIs of Kafka's protocol on topics: what kafka-topics, kafka-configs and admin clients call.

- topics.py: CreateTopics, DeleteTopics, CreatePartitions.
- configs.py: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs; config_entries.py names the configs and their values.
- delete_records.py: DeleteRecords.
- replicas.py: DescribeLogDirs, ElectLeaders, ListPartitionReassignments.
- changes.py: runs the changes of one request, each with its own rights, error and line in the audit log.

Entries: the classes `KafkaTopics`, `KafkaConfigs`, `KafkaDeleteRecords` and `KafkaReplicas`, which handlers.py builds.
AlterPartitionReassignments is not offered: no replica can be moved, since the bucket holds all records.

Invariants:
- An error of one resource stands in its place in the answer, and refuses no other.
- A change is authorized and audited by itself.

Must not import gateway/http or gateway/grpc.
"""
