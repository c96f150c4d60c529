"""A catalog of Iceberg tables in a file of SQLite, configured as an operator does it: by the environment."""

from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.utils.config import Config

TABLE = "lake.logs.messages"
IDENTIFIER = "logs.messages"


def sql_catalog(monkeypatch: pytest.MonkeyPatch, directory: Path, warehouse: str, **properties: str) -> SqlCatalog:
    """The catalog `lake`, for this process and its children. `warehouse`: a URI; `properties`: names as in the
    environment, without the prefix."""
    settings = {"TYPE": "sql", "URI": f"sqlite:///{directory}/catalog.db", "WAREHOUSE": warehouse, **properties}
    for name, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # which is read when pyiceberg is loaded
    found = load_catalog("lake")
    assert isinstance(found, SqlCatalog)
    return found
