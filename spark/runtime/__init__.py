"""Starts Spark and reaches its JVM: sessions, Java, Hadoop's file systems, and a thread for the bucket.

Entries: session.py (a configured session), java.py (finds Java or says what is missing), `HadoopFolder` (hadoop_files.py),
`BucketThread` (bucket_thread.py).

Invariant: code that blocks reaches the bucket through one event loop in one thread (bucket_thread.py).

Must not import source/, sink/ or the commands above.
"""
