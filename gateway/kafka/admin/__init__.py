"""The administrative APIs of Kafka's protocol on topics: what kafka-topics, kafka-configs and admin clients call.

- topics.py: CreateTopics, DeleteTopics, CreatePartitions.
- configs.py: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs; config_entries.py says what is described.
- delete_records.py: DeleteRecords.
- placement.py: DescribeLogDirs, ElectLeaders, ListPartitionReassignments.
- changes.py: runs the changes of one request, each with its own rights, error and line in the audit log.

AlterPartitionReassignments is not offered: no replica can be moved, since the bucket holds all records.
"""
