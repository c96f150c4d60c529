"""Drives an unmodified RocketMQ from Maven Central: name server, broker, producers, consumers."""
