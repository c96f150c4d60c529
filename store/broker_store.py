"""Names in a broker's store root (storePathRootDir of RocketMQ; StorePathConfigHelper)."""

from typing import Final

COMMITLOG: Final = "commitlog"
CONSUME_QUEUE: Final = "consumequeue"
BATCH_CONSUME_QUEUE: Final = "batchconsumequeue"
INDEX: Final = "index"
CONFIG: Final = "config"
TOPICS_FILE: Final = "config/topics.json"
ABORT_FILE: Final = "abort"
"""It exists while a broker runs, and after one that was not stopped cleanly."""
CHECKPOINT_FILE: Final = "checkpoint"
LOCK_FILE: Final = "lock"
"""The file that a broker opens and locks before everything else, and leaves behind."""
