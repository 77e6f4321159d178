"""YAML in which no mapping has a key twice, and whose faults are one line: every configuration file is read through here.

YAML forbids the first, PyYAML takes the last value in silence: a section appended to a file by mistake would replace the one that
an operator wrote. A merge (``<<``) may be overridden as ever, since the two keys stand in different mappings of the file.
"""

from pathlib import Path
from typing import Any

import yaml

WRITTEN_TAGS = ("tag:yaml.org,2002:merge", "tag:yaml.org,2002:value")  # keys that have no value before they are merged


class YamlFileError(ValueError):
    """A file cannot be read or is no YAML; the message is one line that names it."""


class DuplicateKeyError(yaml.YAMLError):
    """A mapping has a key twice, in these lines, counted from 1."""

    def __init__(self, key: object, first_line: int, line: int) -> None:
        super().__init__(
            f"line {line}: expected each key once in a mapping, got {key!r} again, which stands in line {first_line} already: "
            "remove one of them"
        )
        self.first_line, self.line = first_line, line


class _Loader(yaml.SafeLoader):
    """A SafeLoader that refuses a key twice; while it composes, since later a merge has brought its keys in."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError, AttributeError) as error:  # PyYAML's own, of a date with a 13th month
            said = f"expected what {node.tag.rpartition(':')[2]} stands for, got what is none ({error}); quote it if it is text"
            raise yaml.constructor.ConstructorError(None, None, said, node.start_mark) from None

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[object, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):  # cannot be a key of a dictionary: refused afterwards
                continue
            # The value and not the text: yes and true are one key, 1 and "1" are two.
            key = key_node.value if key_node.tag in WRITTEN_TAGS else self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if key in lines:
                raise DuplicateKeyError(key, lines[key], line)
            lines[key] = line
        return node


# PyYAML's constructors are of the process, and lm-format-enforcer, which vLLM imports, makes dates strings in them: a file of ours
# means the same whoever has read one before.
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_yaml_timestamp)  # type: ignore[type-var]


def parse_yaml(text: str) -> Any:
    """Return what a YAML document says.

    Raises:
        yaml.YAMLError: it is no YAML, said in one line; ``DuplicateKeyError`` for a key that stands twice in one mapping.
    """
    try:
        return yaml.load(text, _Loader)
    except DuplicateKeyError:
        raise
    except RecursionError:
        raise yaml.YAMLError("brackets or indentation nested deeper than a configuration's: is it one?") from None
    except yaml.YAMLError as error:
        raise yaml.YAMLError(_in_one_line(error)) from error


def read_yaml_file(path: Path) -> Any:
    """Return what a YAML file says.

    Raises:
        YamlFileError: it cannot be read, or is no YAML.
    """
    try:
        return parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise YamlFileError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise YamlFileError(f"{path}: expected YAML: {error}") from error


def _in_one_line(error: yaml.YAMLError) -> str:
    """PyYAML's own text has up to eight lines, two of them with a copy of the file's."""
    if not isinstance(error, yaml.MarkedYAMLError) or (mark := error.problem_mark) is None:
        return " ".join(str(error).split())
    said = ", ".join(part for part in (error.context, error.problem) if part)
    return f"line {mark.line + 1}, column {mark.column + 1}: {said}"
