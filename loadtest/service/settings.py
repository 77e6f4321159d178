"""What the load test reads from the service's own configuration file: the controller's SLO and the model's context.

The service checks the file; here everything that is missing is simply not known.
"""

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from controller.config import ControllerConfig
from loadtest.errors import InputError
from workload.strict_yaml import YamlFileError, read_yaml_file


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Settings of a service that the report shows and the load respects."""

    slo: dict[str, float]  # the controller's, e.g. {"ttft_ms": 200.0}
    context_tokens: int | None
    has_controller: bool = True


UNKNOWN = ServiceSettings({}, None)


def read_settings(path: Path) -> ServiceSettings:
    """Read a service configuration.

    Raises:
        InputError: it cannot be read or is not YAML, said before the service is started.
    """
    try:
        document = read_yaml_file(path)
    except YamlFileError as error:
        raise InputError(str(error)) from error
    sections = document if isinstance(document, dict) else {}
    model = sections.get("model")
    context = model.get("max_model_len") if isinstance(model, dict) else None
    try:
        slo = ControllerConfig.model_validate(sections.get("controller") or {}).slo.model_dump()
    except ValidationError:
        slo = {}
    engine = sections.get("engine")
    plain = isinstance(engine, dict) and engine.get("quantization") == "none"
    return ServiceSettings(
        {} if plain else slo, context if isinstance(context, int) and context > 1 else None, has_controller=not plain
    )
