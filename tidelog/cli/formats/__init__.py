"""Reads and writes records and tables on the command line. Must not import a command."""
