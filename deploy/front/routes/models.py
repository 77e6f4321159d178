"""One model by its id: its entry in vLLM's list. Ray Serve's own route for it knows another object."""

from typing import Any

import msgspec

from deploy.front.replies import Refused
from deploy.front.routes.pages import Shown

LIST = "/v1/models"
PREFIX = f"{LIST}/"


async def entry(serving: Any, model: str) -> Shown:
    """Return the answer to ``GET /v1/models/MODEL``.

    Args:
        serving: vLLM's ``OpenAIServingModels``.

    Raises:
        Refused: 404 where the list has no such model.
    """
    for card in (await serving.show_available_models()).data:
        if card.id == model:
            return Shown(200, "application/json", msgspec.json.encode(card.model_dump()))
    raise Refused(404, f"there is no model {model[:200]!r} here; {LIST} lists those that there are", param="model")
