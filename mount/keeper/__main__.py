"""`python -m commitlogfs.mount.keeper`: how `mount`, and a daemon whose keeper has died, start a keeper.

Daemons of other versions start it by this name.
"""

import sys

from commitlogfs.mount.keeper.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
