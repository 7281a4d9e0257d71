"""Holds the pages of the console: each module adds its routes, calls the API, and returns templates with values.

Must not import: anything of the broker but gateway/console.
"""
