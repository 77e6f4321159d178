"""The arguments of vLLM's engine and server, as a configuration gives them: their names, and the objects of structured ones."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError
from vllm.engine.arg_utils import AsyncEngineArgs

try:
    from vllm.entrypoints.launchers.cli_args import FrontendArgs
except ModuleNotFoundError:  # vLLM 0.33
    from vllm.entrypoints.common.cli_args import FrontendArgs

SERVER = {field.name for field in dataclasses.fields(FrontendArgs)}
ENGINE = {field.name: field.type for field in dataclasses.fields(AsyncEngineArgs)}
TYPES = ENGINE | {field.name: field.type for field in dataclasses.fields(FrontendArgs)}


def parsed(arguments: Mapping[str, Any]) -> tuple[AsyncEngineArgs, FrontendArgs]:
    """Return the engine's and the server's arguments, as vLLM's command line makes them of JSON.

    Raises:
        ValueError: a structured argument is not as vLLM wants it; the message names it.
        TypeError: vLLM has no such argument.
    """
    made = {name: _object(name, value) for name, value in arguments.items()}
    front = FrontendArgs(**{name: value for name, value in made.items() if name in SERVER})
    return AsyncEngineArgs(**{name: value for name, value in made.items() if name not in SERVER}), front


def _object(name: str, value: Any) -> Any:
    kind = TYPES.get(name)
    kinds = (kind, *typing.get_args(kind))
    if isinstance(value, list):  # of objects, such as lora_modules
        made = next((each for each in kinds if any(map(dataclasses.is_dataclass, typing.get_args(each)))), None)
    else:
        made = next((each for each in kinds if dataclasses.is_dataclass(each)), None)
    if made is None or not isinstance(value, dict | list):
        return value
    try:
        return TypeAdapter(made).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, (name, *first['loc'])))}: {first['msg']}") from None
