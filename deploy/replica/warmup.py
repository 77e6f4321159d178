"""The first requests of a replica: they load what vLLM loads lazily, so that no user pays for it.

They run before the replica joins the control plane, so that their long latencies never look like an overload.
"""

import logging
from typing import Any

from ray.llm._internal.serve.core.configs.openai_api_models import (
    ChatCompletionRequest,
    CompletionRequest,
    ErrorResponse,
)

log = logging.getLogger(__name__)


async def warm_up(engine: Any, model: str) -> None:
    """Send one completion and one chat through the engine's own front end, or have it make one vector.

    A refusal is logged and no error: a model without a chat template refuses chats for ever.
    """
    if engine.makes_vectors:
        await engine.vector("Once upon a time")
        return
    for run, request in (
        (engine.completions, CompletionRequest(model=model, prompt="Once upon a time", max_tokens=4)),
        (
            engine.chat,
            ChatCompletionRequest(model=model, messages=[{"role": "user", "content": "Hello"}], max_tokens=4),
        ),
    ):
        async for response in run(request):
            if isinstance(response, ErrorResponse):
                log.warning("warm-up request refused: %s", response.error.message)
