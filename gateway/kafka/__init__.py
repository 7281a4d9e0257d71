"""Serves Kafka's wire protocol. protocol/ is its codec.

Must not import gateway/http or gateway/grpc.
"""
