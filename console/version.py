"""Version of the installed package. A running process keeps the version that it was loaded with."""

from importlib.metadata import version
from typing import Final

VERSION: Final = version("commitlogfs")
