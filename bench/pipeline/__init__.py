"""`make bench-pipeline`: decoding, counting and rebuilding a log beside RocketMQ doing the same."""
