"""The version of the installed package. A running process keeps the one that it was loaded with."""

from importlib.metadata import version
from typing import Final

VERSION: Final = version("commitlogfs")
