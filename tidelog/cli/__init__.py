"""Implements the command line `tidelog`: one module for each command, or for each group of commands."""
