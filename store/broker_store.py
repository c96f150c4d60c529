"""Names in a broker's store root (storePathRootDir of RocketMQ; StorePathConfigHelper)."""

from typing import Final

COMMITLOG: Final = "commitlog"
CONSUME_QUEUE: Final = "consumequeue"
BATCH_CONSUME_QUEUE: Final = "batchconsumequeue"
INDEX: Final = "index"
CONFIG: Final = "config"
TOPICS_FILE: Final = "config/topics.json"
ABORT_FILE: Final = "abort"
"""File that exists while a broker runs, and after a broker that did not stop cleanly."""
CHECKPOINT_FILE: Final = "checkpoint"
LOCK_FILE: Final = "lock"
"""File that a broker opens and locks before everything else, and does not remove."""
