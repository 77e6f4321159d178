"""No number of the configuration is without a bound."""

from types import UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Interval
from pydantic import BaseModel

from deploy.config import DeployConfig


def numbers_of(annotation, metadata=()):
    """Yield the bounds of every number that a field's annotation takes; of models, those of their fields."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from numbers_of(arguments[0], (*metadata, *arguments[1:]))
    elif arguments and origin is not Literal:
        for argument in arguments:
            yield from numbers_of(argument, metadata if origin in (Union, UnionType) else ())
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            for inner, bounds in numbers_of(field.annotation, field.metadata):
                yield inner or f"{annotation.__name__}.{name}", bounds
    elif annotation in (int, float):
        yield "", [bound for each in metadata for bound in getattr(each, "metadata", [each])]


def test_every_number_of_the_configuration_has_a_lower_bound():
    found = list(numbers_of(DeployConfig))
    assert len(found) > 40
    bare = {name for name, bounds in found if not any(isinstance(bound, Gt | Ge | Interval) for bound in bounds)}
    assert not bare
