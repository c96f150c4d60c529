"""`python -m commitlogfs.pipeline`, also the program for spark-submit (docs/pipeline.md)."""

import sys

from commitlogfs.pipeline.entry import main

if __name__ == "__main__":
    sys.exit(main())
