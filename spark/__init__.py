"""The data pipeline on Spark, which reads the bucket alone: see README.md in this folder."""
