"""The codec of Kafka's wire protocol."""
