"""Base class of all tables of the configuration file."""

from pydantic import BaseModel, ConfigDict


class StrictTable(BaseModel):
    """A table in which unknown keys, and values of another type, are errors."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
