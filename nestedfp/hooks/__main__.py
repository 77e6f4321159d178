"""``python -m nestedfp.hooks``: prints the table of hooks, and what differs in the installed vLLM."""

import argparse
import sys
from collections.abc import Iterable

from nestedfp.hooks import compare, versions
from nestedfp.hooks.table import HOOKS, PUBLIC


def markdown() -> str:
    """Return the table, as docs/hooks.md has it."""
    count = sum(len(hooks.names) for hooks in HOOKS)
    rows = [f"| {hooks.owner} | {hooks.reason} | {_names(hooks.names)} |" for hooks in HOOKS]
    head = f"{count} names, {count - len(PUBLIC)} of them private:"
    return "\n".join([head, "", "| part of the plugin | reason | names of vLLM |", "|---|---|---|", *rows])


def _names(names: Iterable[str]) -> str:
    """Return names by module: ``module:`` A, B."""
    by_module: dict[str, list[str]] = {}
    for name in names:
        module, _, path = name.partition(":")
        by_module.setdefault(module.replace("|", " or "), []).append(path.replace("|", " or "))
    return "; ".join(f"`{module}`: {', '.join(f'`{path}`' for path in paths)}" for module, paths in by_module.items())


def main() -> int:
    """Print; 1 where something differs, 2 where there is no vLLM."""
    parser = argparse.ArgumentParser(prog="python -m nestedfp.hooks", description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="the table alone, for docs/hooks.md")
    if parser.parse_args().markdown:
        print(markdown())
        return 0
    try:
        version = versions.installed("vllm")
    except ImportError as error:
        print(f"error: no vLLM to compare with: {error}; install one of requirements/", file=sys.stderr)
        return 2
    for hooks in HOOKS:
        print(f"{hooks.owner}: {hooks.reason}")
        for name, parameters in hooks.names.items():
            print(f"    {name}{'' if parameters is None else '(' + ', '.join(parameters) + ')'}")
    found = compare.differences()
    tested = "tested" if version in versions.TESTED["vllm"] else "not tested"
    print(f"vLLM {version} ({tested}): {len(found) or 'nothing'} {'differ' if len(found) > 1 else 'differs'}")
    for each in found:
        print(f"    {each}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
