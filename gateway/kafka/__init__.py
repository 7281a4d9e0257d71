"""Serves Kafka's wire protocol: kafka/protocol/ is its codec."""
