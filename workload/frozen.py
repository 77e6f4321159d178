"""The base of every record and of every settings model."""

from pydantic import BaseModel, ConfigDict


class FrozenModel(BaseModel):
    """Immutable, no unknown keys, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
