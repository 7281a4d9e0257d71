"""Implements the Produce stream: reads requests within a budget of bytes, decodes and appends them, answers in order.

Entry: `GrpcProduce` in service.py.
"""
