"""Produces and fetches records over HTTP: JSON, newline-delimited JSON and Arrow, single answers and streams.

produce.py decodes bodies (json_body.py, arrow_body.py) and appends by gateway/records; fetch.py and stream.py read and encode.
"""
