"""The replica's engine: Ray Serve LLM's vLLM engine, plus the header form of the pin and the disclosure of precision.

The private attributes of Ray's class that we need are touched in this file only.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ray.llm._internal.serve.core.configs.openai_api_models import ErrorInfo, ErrorResponse
from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine

from deploy.admission import Admission
from deploy.usage import StreamDiscloser, disclose
from nestedfp.vllm_plugin import frontend
from nestedfp.vllm_plugin.pin import PIN_HEADER, PIN_KEY


class NestedFPEngine(VLLMEngine):  # type: ignore[misc]
    """VLLMEngine with a door, whose chat and completion responses disclose ``usage.precision_tokens``."""

    admission = Admission(None, sequences=1)  # the server puts the replica's own here

    async def call(self, utility: str, *args: Any) -> Any:
        """Call a utility of the engine core; answered between two steps."""
        return await self._engine_client.engine_core.call_utility_async(utility, *args)

    async def chat(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        pin_from_header(request, raw_request_info)
        async with aclosing(self._disclosed(request, super().chat(request, raw_request_info))) as items:
            async for item in items:
                yield item

    async def completions(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        pin_from_header(request, raw_request_info)
        async with aclosing(self._disclosed(request, super().completions(request, raw_request_info))) as items:
            async for item in items:
                yield item

    async def _disclosed(self, request: Any, responses: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        if not self.admission.enter():
            error = ErrorInfo(message=self.admission.message(), type="overloaded_error", code=503)
            yield ErrorResponse(error=error)
            return
        try:
            async with aclosing(responses):
                with frontend.collected() as counts:

                    def tokens() -> Any:
                        return frontend.usage_of(frontend.total(counts.values())) if counts else None

                    options = getattr(request, "stream_options", None)
                    stream = StreamDiscloser(tokens, include_usage=bool(options and options.include_usage))
                    async for response in responses:
                        if isinstance(response, str):
                            yield stream.event(response)
                        elif (usage := getattr(response, "usage", None)) is not None:
                            disclosed = disclose(usage.model_dump(), tokens())
                            yield response.model_copy(update={"usage": type(usage).model_validate(disclosed)})
                        else:
                            yield response
        finally:
            self.admission.leave()


def pin_from_header(request: Any, raw_request_info: Any) -> None:
    """Copy the header ``x-nestedfp-precision`` into ``vllm_xargs``; the body wins when both are given."""
    headers = raw_request_info.headers if raw_request_info is not None else {}
    value = next((v for k, v in headers.items() if k.lower() == PIN_HEADER), None)
    if value is not None and PIN_KEY not in (request.vllm_xargs or {}):
        request.vllm_xargs = {**(request.vllm_xargs or {}), PIN_KEY: value}
