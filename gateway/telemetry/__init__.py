"""Observes the broker: the registry of metrics, collectors, the context of the request that is served, and traces (OTLP).

Must not import what it observes: collectors receive values or narrow interfaces.
"""
