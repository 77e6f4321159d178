"""Writes the generated tables of README.md and docs/*.md, from docs/results, docs/fidelity and benchmarks/results.

A table stands between <!-- table NAME ARGUMENT... --> and <!-- /table -->; --check changes nothing and fails where a page differs.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from docs.tables.fidelity import TABLES as FIDELITY
from docs.tables.marks import MarkError, filled
from docs.tables.measured import TABLES as MEASURED
from docs.tables.serving import TABLES as SERVING

ROOT = Path(__file__).resolve().parents[2]
TABLES = {**MEASURED, **SERVING, **FIDELITY}


def main(words: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Return the exit status: 0, 1 where a page differs under --check, 2 for a mark that no table is of."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.tables", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only say which pages differ")
    check = parser.parse_args(words).check
    differing = 0
    for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        text = page.read_text()
        try:
            new = filled(text, TABLES)
        except (MarkError, OSError) as error:
            print(f"error: {page.relative_to(root)}: {error}", file=sys.stderr)
            return 2
        if new != text:
            differing += 1
            print(f"{page.relative_to(root)}: {'differs: run python -m docs.tables' if check else 'written'}")
            if not check:
                page.write_text(new)
    return 1 if check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
