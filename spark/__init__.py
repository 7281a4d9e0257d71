"""The data pipeline on Spark: see README.md in this folder. Nothing is built yet."""
