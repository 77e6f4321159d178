"""The numeric parameters of a policy as a space to search: names, bounds and values. Pure.

A parameter is a number of the policy's pydantic model, or of a model inside it (``wait_s.enter``). Its bounds are those
of the model where both are finite, or given as ``name=low:high``. Values are rounded to ``DIGITS`` before they are
tried, so that what is written down is what was measured.
"""

import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import annotated_types as bounds
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from simulator.errors import SimulationError

DIGITS = 3  # significant ones
LOG_FROM = 1000.0  # high over low from which values are drawn by their logarithm


@dataclass(frozen=True, slots=True)
class Parameter:
    """One axis of the space; both bounds may be taken."""

    name: str
    low: float
    high: float
    whole: bool  # an integer

    @property
    def by_logarithm(self) -> bool:
        """Whether doubling matters rather than adding."""
        return self.low > 0 and self.high / self.low >= LOG_FROM

    def rounded(self, value: float) -> float | int:
        """The value as it is tried and written."""
        if self.whole:
            return round(value)
        return min(self.high, max(self.low, float(f"{value:.{DIGITS}g}")))


@dataclass(frozen=True, slots=True)
class _Number:
    """A numeric field and what its model says about it; None: no such bound."""

    whole: bool
    low: float | None
    high: float | None
    open_low: bool
    open_high: bool


def bounded(model: type[BaseModel]) -> tuple[Parameter, ...]:
    """The parameters whose model states both bounds; an open bound is moved inwards by a hundredth of the range."""
    found = []
    for name, number in _numbers(model):
        if number.low is not None and number.high is not None:
            inset = (number.high - number.low) / 100
            low = number.low + (inset if number.open_low else 0.0)
            high = number.high - (inset if number.open_high else 0.0)
            found.append(Parameter(name, low, high, number.whole))
    return tuple(found)


def given(text: str, model: type[BaseModel]) -> tuple[Parameter, ...]:
    """Parse ``a=0.5:1.0,b.c=1:10``.

    Raises:
        SimulationError: naming the part that is wrong, or the parameters that there are.
    """
    numbers = dict(_numbers(model))
    found: dict[str, Parameter] = {}
    for part in text.split(","):
        name, _, span = part.strip().partition("=")
        try:
            low, high = (float(end) for end in span.split(":"))
        except ValueError as error:
            raise SimulationError(f"--parameters: expected name=low:high, got {part!r}") from error
        if name not in numbers:
            raise SimulationError(
                f"--parameters: expected one of {', '.join(numbers) or 'none: the policy has no number'}, got {name!r}"
            )
        if not (-float("inf") < low < high < float("inf")):
            raise SimulationError(f"--parameters: {name}: expected low < high, both finite, got {span!r}")
        number = numbers[name]
        for bound, wrong in ((number.low, low), (number.high, high)):
            if bound is not None and (
                (bound is number.low and wrong < bound) or (bound is number.high and wrong > bound)
            ):
                raise SimulationError(
                    f"--parameters: {name}: the policy takes values from {_span(number)}, got {span!r}"
                )
        if number.whole and (low != int(low) or high != int(high)):
            raise SimulationError(f"--parameters: {name}: expected whole numbers, got {span!r}")
        found[name] = Parameter(name, low, high, number.whole)
    return tuple(found.values())


def applied(policy: Mapping[str, Any], values: Mapping[str, float | int]) -> dict[str, Any]:
    """The policy's section with other values; the models inside keep their other keys."""
    section = dict(policy)
    for name, value in values.items():
        *path, key = name.split(".")
        place = section
        for step in path:
            place[step] = dict(place.get(step) or {})
            place = place[step]
        place[key] = value
    return section


def present(policy: BaseModel, parameters: Sequence[Parameter]) -> dict[str, float | int] | None:
    """The values that a policy has now; None when one is unset or lies outside the space."""
    values = {}
    for parameter in parameters:
        value: Any = policy
        for step in parameter.name.split("."):
            value = getattr(value, step, None)
        if value is None or not parameter.low <= value <= parameter.high:
            return None
        values[parameter.name] = value
    return values


def _numbers(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, _Number]]:
    for name, field in model.model_fields.items():
        types_ = [kind for kind in _alternatives(field.annotation) if isinstance(kind, type)]
        if any(kind in (int, float) for kind in types_):
            yield prefix + name, _number(field, int in types_)
        for kind in types_:
            if issubclass(kind, BaseModel):
                yield from _numbers(kind, f"{prefix}{name}.")


def _alternatives(annotation: Any) -> list[Any]:
    """The types of a union, without the constraints around them."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _alternatives(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [kind for part in typing.get_args(annotation) for kind in _alternatives(part)]
    return [annotation]


def _number(field: FieldInfo, whole: bool) -> _Number:
    low = high = None
    open_low = open_high = False
    for constraint in _constraints(field):
        match constraint:
            case bounds.Ge(ge=value):
                low = float(typing.cast(float, value))
            case bounds.Gt(gt=value):
                low, open_low = float(typing.cast(float, value)), True
            case bounds.Le(le=value):
                high = float(typing.cast(float, value))
            case bounds.Lt(lt=value):
                high, open_high = float(typing.cast(float, value)), True
    return _Number(whole, low, high, open_low, open_high)


def _constraints(field: FieldInfo) -> Iterator[Any]:
    """Those of the field, and those of the parts of a union (``Annotated[float, ...] | None``)."""
    for part in (*field.metadata, *(arg for kind in typing.get_args(field.annotation) for arg in _metadata(kind))):
        yield from part.metadata if isinstance(part, FieldInfo) else (part,)


def _metadata(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind)[1:] if typing.get_origin(kind) is typing.Annotated else ()


def _span(number: _Number) -> str:
    low = "any" if number.low is None else f"{number.low:g}"
    return f"{low} to {'any' if number.high is None else f'{number.high:g}'}"
