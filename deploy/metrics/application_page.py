"""The page of the whole application: the controller's families and every replica's page."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from deploy.metrics import controller_families, openmetrics
from nestedfp.vllm_plugin.serving.engine_families import gauge

log = logging.getLogger(__name__)

REPLICA_TIMEOUT_S = 3.0  # Prometheus gives a scrape 10 s by default
CONTROLLER_TIMEOUT_S = 2.0


@dataclass(eq=False)
class ApplicationMetrics:
    """Makes the page of an application."""

    application: str  # name of the Serve application whose replicas are asked
    ask: Callable[[str], Awaitable[Any]]  # asks its controller
    _handle: Any = None
    _making: asyncio.Task[str] | None = None

    async def text(self) -> str:
        """Return the page. Scrapes that come at the same time share one: a crowd of them costs the replicas one page."""
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._make())
        return await asyncio.shield(self._making)

    async def _make(self) -> str:
        pages, status = await asyncio.gather(self._replica_pages(), self._status())
        found = [text for text in pages if isinstance(text, str)]
        silent = len(pages) - len(found)
        families = [
            *controller_families.families(status),
            gauge("nestedfp_replicas_scraped", "Replicas that are on this page", len(found)),
            gauge("nestedfp_replicas_silent", "Replicas that Serve runs and that did not answer in time", silent),
        ]
        return openmetrics.merge([openmetrics.render(families, {"application": self.application}), *found])

    async def _status(self) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(CONTROLLER_TIMEOUT_S):
                return await self.ask("status")
        except Exception as error:
            log.debug("the controller is not on the page: %r", error)
            return None

    async def _replica_pages(self) -> list[Any]:
        """Return each replica's page, or what went wrong with it; nothing where there is no such application."""
        try:
            from ray import serve  # here, so that tests of what is made of the answers need not load it

            async with asyncio.timeout(2 * REPLICA_TIMEOUT_S):
                if self._handle is None:
                    self._handle = await asyncio.to_thread(serve.get_app_handle, self.application)
                response = self._handle.broadcast("metrics_page")
                return await response.results_async(timeout_s=REPLICA_TIMEOUT_S, return_exceptions=True)
        except Exception as error:
            self._handle = None
            log.debug("no replica is on the page: %r", error)
            return []
