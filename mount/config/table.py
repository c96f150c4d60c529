"""What every table of the configuration file has in common."""

from pydantic import BaseModel, ConfigDict


class StrictTable(BaseModel):
    """Unknown keys are errors, and so is a value that would have to be converted."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
