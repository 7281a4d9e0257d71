"""Holds the commands that run servers: `dev`, `serve` and `compact`.

They import the gateway when they run, so that other commands start quickly. setting_list.py lists every setting with its value,
default and meaning.
"""
