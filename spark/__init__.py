"""The data pipeline on Spark, which reads the bucket alone: see README.md in this folder."""

from tidelog.import_check import ALL, check_packages

# Executors import modules of this package by their names alone, beside files that were shipped to them.
check_packages(*ALL)
