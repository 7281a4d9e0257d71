"""Reads and writes records and tables on the command line.

record_input.py reads lines, NDJSON, CSV or whole files; record_format.py and record_writer.py write records; group_tables.py writes
tables of groups.

Must not import a command.
"""
