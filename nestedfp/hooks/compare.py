"""Compares the table of hooks with the installed vLLM: names, parameters, attributes of instances."""

import ast
import contextlib
import functools
import importlib
import inspect
import itertools
import textwrap
from collections.abc import Mapping
from typing import Any

from nestedfp.hooks.table import HOOKS, Parameters

CORE = "vllm.config"  # which all of vLLM imports


def differences() -> list[str]:
    """Return what differs in the installed vLLM, one sentence each."""
    try:
        importlib.import_module(CORE)
    except Exception as error:  # of a package that it needs, and then no name is there
        return [
            f"vLLM does not load here ({type(error).__name__}: {str(error).partition(chr(10))[0]}); mend its environment"
        ]
    return missing({name: parameters for hooks in HOOKS for name, parameters in hooks.names.items()})


def missing(names: Mapping[str, Parameters | None]) -> list[str]:
    """Return which of these names are not there or take other parameters, one sentence each. See ``Hooks.names``."""
    return [problem for name, wanted in names.items() if (problem := _problem(name, wanted))]


def _problem(name: str, wanted: Parameters | None) -> str | None:
    owner, separator, attributes = name.partition("#")
    try:
        if separator:
            held = _attributes(_find(owner))
            if held.isdisjoint(attributes.split("|")):
                return f"{name} is not there: instances have no such attribute"
            return None
        found = _first(name)
    except (ImportError, AttributeError):
        return f"{name} is not there"
    if wanted is None:
        return None
    parameters = list(inspect.signature(inspect.unwrap(found)).parameters)
    return None if parameters[: len(wanted)] == list(wanted) else f"{name} takes {parameters}, expected {list(wanted)}"


def _first(name: str) -> Any:
    """Return the first of the alternatives, of modules and of the last name, ``a|b:Class.c|d``, that is there."""
    modules, _, path = name.partition(":")
    start, dot, last = path.rpartition(".")
    for module, end in itertools.product(modules.split("|"), last.split("|")):
        with contextlib.suppress(ImportError, AttributeError):
            return _find(f"{module}:{start}{dot}{end}")
    raise AttributeError(name)


def _find(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        if not hasattr(found, part) and inspect.ismodule(found):
            try:
                importlib.import_module(f"{found.__name__}.{part}")
            except ImportError:
                raise AttributeError(name) from None
        found = getattr(found, part)
    return found


@functools.cache
def _attributes(found: type) -> frozenset[str]:
    """Return the attributes of a class's instances: those of the class, and those that its methods set."""
    names = set(dir(found))
    for part in inspect.getmro(found)[:-1]:
        names |= set(getattr(part, "__annotations__", ()))
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(part)))
        except (OSError, TypeError):  # compiled: no source to read
            continue
        names |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value)
        }
    return frozenset(names)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"
