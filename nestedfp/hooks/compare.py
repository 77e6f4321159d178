"""Compares the table of hooks with the installed vLLM: names, parameters, attributes of instances, abstract methods, call sites.

Our side is read from the source without importing it: on a vLLM that lacks a name the plugin's modules do not load.
"""

import ast
import contextlib
import functools
import importlib
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nestedfp.hooks.table import HOOKS, Hooks, Parameters

PLUGIN = Path(__file__).resolve().parents[1] / "vllm_plugin"
CORE = "vllm.config"  # which all of vLLM imports
Function = ast.FunctionDef | ast.AsyncFunctionDef


def differences() -> list[str]:
    """Return what differs in the installed vLLM, one sentence each."""
    try:
        importlib.import_module(CORE)
    except Exception as error:  # of a package that it needs, and then no name is there
        return [
            f"vLLM does not load here ({type(error).__name__}: {str(error).partition(chr(10))[0]}); mend its environment"
        ]
    ours = _our_classes()
    return [
        *missing({name: parameters for hooks in HOOKS for name, parameters in hooks.names.items()}),
        *(each for hooks in HOOKS for each in (*_not_accepted(hooks, ours), *_not_implemented(hooks, ours))),
    ]


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


# -- call sites --------------------------------------------------------------------------------------------------------


def _not_accepted(hooks: Hooks, ours: Mapping[str, ast.ClassDef]) -> Iterator[str]:
    """Yield the calls in vLLM's own source that our override of a method does not take."""
    methods = {each for name in hooks.names for each in name.rpartition(".")[2].split("|") if "#" not in name}
    for module, receiver in hooks.calls:
        for call, method in _calls(module, receiver, methods):
            for override in (each for name in hooks.ours for each in _methods(ours[name], method, ours)):
                if not accepts(override, call):
                    taken = f"{method}({ast.unparse(override.args)})"
                    yield f"{module}, line {call.lineno}: {ast.unparse(call)} is a call that our {taken} does not take"


def accepts(function: Function, call: ast.Call) -> bool:
    """Whether a method takes a call of it. One with ``*`` or ``**`` is taken: nobody can tell."""
    if any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords):
        return True
    args = function.args
    static = any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in function.decorator_list)
    names = [each.arg for each in (*args.posonlyargs, *args.args)][0 if static else 1 :]
    given, named = names[: len(call.args)], {str(each.arg) for each in call.keywords}
    optional = {*names[len(names) - len(args.defaults) :]} if args.defaults else set()
    keyword_only = {each.arg for each in args.kwonlyargs}
    needed = {each.arg for each, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None}
    too_many = len(call.args) > len(names) and args.vararg is None
    unknown = named - {*names[len(given) :]} - keyword_only and args.kwarg is None
    return not too_many and not unknown and {*names} - optional - {*given} <= named and needed <= named


def _calls(module: str, receiver: str, methods: set[str]) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(_source(module)):
        if isinstance(node, ast.Call) and isinstance(called := node.func, ast.Attribute) and called.attr in methods:
            if ast.unparse(called.value) != receiver:
                continue
            yield node, called.attr


@functools.cache
def _source(module: str) -> ast.Module:
    try:
        return ast.parse(inspect.getsource(importlib.import_module(module)))
    except (ImportError, OSError, TypeError):  # not there, or compiled
        return ast.Module([], [])


# -- abstract methods --------------------------------------------------------------------------------------------------


def _not_implemented(hooks: Hooks, ours: Mapping[str, ast.ClassDef]) -> Iterator[str]:
    """Yield the abstract methods of vLLM's classes that a class of ours, which extends one, does not have."""
    for name in sorted(set(map(_class_of, hooks.names))):
        base = name.partition(":")[2]
        for body in (ours[each] for each in hooks.ours):
            if base not in {ast.unparse(each) for part in _bases(body, ours) for each in part.bases}:
                continue
            with contextlib.suppress(ImportError, AttributeError):  # said by missing
                abstract = sorted(getattr(_find(name), "__abstractmethods__", ()))
                if lacking := [each for each in abstract if not any(_methods(body, each, ours))]:
                    yield f"{name} has the abstract methods {lacking}, which our {body.name} lacks"


def _class_of(name: str) -> str:
    module, _, path = name.partition(":")
    return f"{module}:{re.split('[.#]', path)[0]}"


def _our_classes() -> dict[str, ast.ClassDef]:
    """Return the plugin's classes by name."""
    trees = (ast.parse(file.read_text()) for file in sorted(PLUGIN.rglob("*.py")))
    return {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def _bases(body: ast.ClassDef, ours: Mapping[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    """Yield a class and those of ours that it extends."""
    yield body
    for base in body.bases:
        if (name := ast.unparse(base)) in ours:
            yield from _bases(ours[name], ours)


def _methods(body: ast.ClassDef, name: str, ours: Mapping[str, ast.ClassDef]) -> Iterator[Function]:
    """Yield the methods of that name, also those that a class has by a condition."""
    for part in (each for owner in _bases(body, ours) for each in owner.body):
        for node in ast.walk(part) if isinstance(part, ast.If) else (part,):
            if isinstance(node, Function) and node.name == name:
                yield node
