"""`python -m commitlogfs.pipeline`, and what spark-submit is given (docs/pipeline.md)."""

import sys

from commitlogfs.pipeline.entry import main

if __name__ == "__main__":
    sys.exit(main())
