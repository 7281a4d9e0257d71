"""Implements the services that answer a call at a time: the log, groups, topics, the cluster and access."""
