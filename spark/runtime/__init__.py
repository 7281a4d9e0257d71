"""Starts Spark and reaches its JVM: sessions, Java, Hadoop's file systems, and a thread for the bucket.

    command ─▶ session.py ─▶ java.py (finds Java, or says what is missing) ─▶ a Spark session
    source, sink ─▶ bucket_thread.py (one event loop in one thread) ─▶ the bucket

Entries: `spark_session` (session.py), `HadoopFolder` (hadoop_files.py), `BucketThread` (bucket_thread.py).

Invariants:
- A missing part of Spark is reported in one sentence before Spark starts.
- Blocking code reaches the bucket through one event loop, so connections are kept.

Must not import source/, sink/ or the commands above.
"""
