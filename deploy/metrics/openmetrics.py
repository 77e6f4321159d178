"""From families of samples to the text that is scraped (OpenMetrics 1.0), and several pages made one. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import ALLOWUTF8, CONTENT_TYPE_LATEST, generate_latest

CONTENT_TYPE = CONTENT_TYPE_LATEST
END = "# EOF\n"
FAMILY_LINES = ("# HELP ", "# TYPE ", "# UNIT ")


def labelled(families: Iterable[Metric], labels: Mapping[str, str]) -> Iterator[Metric]:
    """Yield the families with further labels on every sample, and without the samples that say when a series began.

    Those (``_created``) would double the number of series, and no query needs them.
    """
    for family in families:
        changed = Metric(family.name, family.documentation, family.type, family.unit)
        changed.samples = [
            sample._replace(labels={**labels, **sample.labels})
            for sample in family.samples
            if not sample.name.endswith("_created")
        ]
        yield changed


def render(families: Iterable[Metric], labels: Mapping[str, str]) -> str:
    """Return a page with ``labels`` on every sample."""
    # Not the default escaping: it turns the colon of the samples of vllm: into an underscore, which is a legal character.
    registry: Any = SimpleNamespace(collect=lambda: labelled(families, labels))
    text: str = generate_latest(registry, escaping=ALLOWUTF8).decode()
    return text


def merge(pages: Iterable[str]) -> str:
    """Return one page of several: every family once, with the samples of all pages.

    Families keep the order in which they first come; the first page's description of one holds.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for page in pages:
        name, fresh = "", False
        for line in page.splitlines(keepends=True):
            if line.startswith(FAMILY_LINES):
                if (found := line.split(" ", 3)[2].rstrip("\n")) != name:
                    name, fresh = found, found not in heads
                if fresh:
                    heads.setdefault(name, []).append(line)
            elif line != END:
                samples.setdefault(name, []).append(line)
    parts = ["".join(head) + "".join(samples.get(name, ())) for name, head in heads.items()]
    return "".join(parts) + END
