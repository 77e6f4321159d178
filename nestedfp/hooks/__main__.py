"""``python -m nestedfp.hooks``: prints the table of hooks, public ones with a ``*``, and what differs in the installed vLLM."""

import sys

from nestedfp.hooks import compare, versions
from nestedfp.hooks.table import HOOKS, PUBLIC


def main() -> int:
    """Print; 1 where something differs, 2 where there is no vLLM."""
    try:
        version = versions.installed("vllm")
    except ImportError as error:
        print(f"error: no vLLM to compare with: {error}; install one of requirements/", file=sys.stderr)
        return 2
    for hooks in HOOKS:
        print(f"{hooks.owner}: {hooks.reason}")
        for name, parameters in hooks.names.items():
            print(
                f"    {'*' * (name in PUBLIC)}{name}{'' if parameters is None else '(' + ', '.join(parameters) + ')'}"
            )
    found = compare.differences()
    tested = "tested" if version in versions.TESTED["vllm"] else "not tested"
    print(f"vLLM {version} ({tested}): {len(found) or 'nothing'} {'differ' if len(found) > 1 else 'differs'}")
    for each in found:
        print(f"    {each}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
