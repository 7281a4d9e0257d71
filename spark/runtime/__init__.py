"""Starts Spark and reaches its JVM: sessions, Java, Hadoop's file systems, and a thread with an event loop for the bucket."""
