"""The first requests of a replica: they load what vLLM loads lazily, so that no user pays for it.

They run before the replica joins the control plane, so that their long latencies never look like an overload.
"""

import logging
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import VLLMClientError

log = logging.getLogger(__name__)


async def warm_up(engine: Any, model: str) -> None:
    """Send one completion and one chat through the engine's own front end.

    A refusal is logged and no error: a model without a chat template refuses chats for ever.
    """
    for run, request in (
        (
            engine.app.state.openai_serving_completion.create_completion,
            CompletionRequest(model=model, prompt="Once upon a time", max_tokens=4),
        ),
        (
            engine.app.state.openai_serving_chat.create_chat_completion,
            ChatCompletionRequest(model=model, messages=[{"role": "user", "content": "Hello"}], max_tokens=4),
        ),
    ):
        try:
            response = await run(request)
        except (ValueError, VLLMClientError) as error:
            log.warning("warm-up request refused: %s", error)
        else:
            if isinstance(response, ErrorResponse):
                log.warning("warm-up request refused: %s", response.error.message)
