"""Implements Fetch: long polls of several partitions, answered with record batches. Entry: `GrpcFetch` in service.py."""
