"""The places of generated tables in a page."""

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence

# name of a table -> its Markdown, of the words behind the name in the mark, and of the lines below them.
Tables = Mapping[str, Callable[..., str]]

_BEGIN = re.compile(r"^<!-- table ", re.MULTILINE)
_MARK = re.compile(
    r"^<!-- table (?P<words>[^>]*?)\s*-->\n(?:(?!<!-- table ).)*?^<!-- /table -->", re.DOTALL | re.MULTILINE
)


class MarkError(ValueError):
    """A mark that has no end, or that no table is of."""


def filled(text: str, tables: Tables) -> str:
    """Return the page with every table made anew.

    Raises:
        MarkError: with the mark and what was expected.
    """
    found = list(_MARK.finditer(text))
    begun = len(_BEGIN.findall(text))
    if len(found) != begun:
        raise MarkError(f"expected <!-- /table --> behind each of {begun} <!-- table NAME -->, found {len(found)}")

    def new(match: re.Match[str]) -> str:
        first, *lines = match["words"].splitlines()
        name, *arguments = first.split()
        if name not in tables:
            raise MarkError(f"table {name}: expected one of {', '.join(sorted(tables))}")
        try:
            table = tables[name](*arguments, *lines)
        except (KeyError, TypeError, ValueError) as error:  # a row that is not there, or no row's name
            raise MarkError(f"table {name}: {type(error).__name__}: {error}") from error
        end = "\n-->" if lines else " -->"
        return f"<!-- table {match['words']}{end}\n{table}\n<!-- /table -->"

    return _MARK.sub(new, text)


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    first, *rest = [f"| {' | '.join(fields)} |" for fields in (headings, *rows)]
    return "\n".join([first, f"|{'---|' * len(headings)}", *rest])


def under(conditions: str, table: str) -> str:
    """Return a table under the line that says how it was measured."""
    return f"{textwrap.fill(conditions, 132, break_long_words=False, break_on_hyphens=False)}\n\n{table}"
