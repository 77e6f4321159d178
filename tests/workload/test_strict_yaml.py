"""YAML with a key twice is refused; everything else means what it always meant."""

import datetime
from pathlib import Path

import pytest
import yaml

from workload.strict_yaml import DuplicateKeyError, YamlFileError, parse_yaml, read_yaml_file


@pytest.mark.parametrize(
    ("text", "key", "first_line", "line"),
    [
        ("a: 1\nb: 2\na: 3\n", "'a'", 1, 3),
        ("outer:\n  inner:\n    a: 1\n    'a': 2\n", "'a'", 3, 4),
        ("- {a: 1, a: 2}\n", "'a'", 1, 1),
        ("true: 1\nyes: 2\n", "True", 1, 2),
        ("1: x\n0x1: y\n", "1", 1, 2),
        ("base: &base {a: 1, a: 2}\nuser:\n  <<: *base\n", "'a'", 1, 1),
        ("x: &x {a: 1}\ny: &y {b: 1}\nz:\n  <<: *x\n  <<: *y\n", "'<<'", 4, 5),
        ('{"a": 1,\n "a": 2}', "'a'", 1, 2),
    ],
)
def test_a_key_twice_in_a_mapping_is_named_with_both_lines(text: str, key: str, first_line: int, line: int) -> None:
    with pytest.raises(DuplicateKeyError) as caught:
        parse_yaml(text)
    assert (caught.value.first_line, caught.value.line) == (first_line, line)
    assert str(caught.value).startswith(f"line {line}: ")
    assert f"got {key} again, which stands in line {first_line} already" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("a: {b: 1}\nc: {b: 1}\n", {"a": {"b": 1}, "c": {"b": 1}}),
        ("1: x\n'1': y\n", {1: "x", "1": "y"}),
        ("base: &b {a: 1, c: 2}\nuser:\n  <<: *b\n  a: 3\n", {"base": {"a": 1, "c": 2}, "user": {"a": 3, "c": 2}}),
        # Merged again after it has been merged into: its keys have become those of both.
        (
            "x: &x {a: 1}\ny: &y {<<: *x, a: 2, b: 3}\nz: {<<: [*y, *x], b: 4}\n",
            {"x": {"a": 1}, "y": {"a": 2, "b": 3}, "z": {"a": 2, "b": 4}},
        ),
        ("", None),
        ("- 2023-11-16\n", [datetime.date(2023, 11, 16)]),
    ],
)
def test_what_has_no_key_twice_means_what_it_meant(text: str, meaning: object) -> None:
    assert parse_yaml(text) == meaning


def test_what_a_library_makes_of_dates_for_all_does_not_change_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    constructors = yaml.SafeLoader.yaml_constructors
    monkeypatch.setitem(constructors, "tag:yaml.org,2002:timestamp", constructors["tag:yaml.org,2002:str"])
    assert yaml.safe_load("2023-11-16") == "2023-11-16"
    assert parse_yaml("2023-11-16") == datetime.date(2023, 11, 16)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: [", "line 2, column 5: while parsing a flow node, expected the node content, but found"),
        ("? [1, 2]\n: 3\n", "line 1, column 3: while constructing a mapping, found unhashable key"),
        ("!!python/object:os.system {}", "line 1, column 1: could not determine a constructor for the tag"),
        ("a: !!int x", "line 1, column 4: expected what int stands for, got what is none (invalid literal for int()"),
        (
            "a: {b: 2023-13-45}",
            "line 1, column 8: expected what timestamp stands for, got what is none (month must be in 1..12)",
        ),
        ("a: \0", "unacceptable character #x0000: special characters are not allowed"),
        ("[" * 5000, "nested deeper"),
    ],
)
def test_what_is_no_safe_yaml_is_an_error_of_one_line(text: str, said: str) -> None:
    with pytest.raises(yaml.YAMLError) as caught:
        parse_yaml(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["a: 1\nb: 2023-02-30\n", "a: 1\n2023-99-99: b\n", "a: 1\nb: !!int x\n", "a: 1\nb: !!bool x\n", "a: 1\nb: 0b_\n"],
)
def test_a_value_that_looks_like_another_than_it_is_is_an_error_of_the_file_with_its_line(text: str) -> None:
    """And no ValueError of PyYAML's, which nobody who reads a file expects: it ended the request that found the keys changed."""
    with pytest.raises(yaml.YAMLError, match="line 2") as caught:
        parse_yaml(text)
    assert "quote it if it is text" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"a: [", "expected YAML: line 1, column 5: "),
        (b"a: 1\na: 2\n", "expected YAML: line 2: expected each key once"),
        ("a: caf\u00e9".encode("latin-1"), "expected YAML: 'utf-8' codec can't decode byte 0xe9"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_in_one_line(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "c.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(YamlFileError) as caught:
        read_yaml_file(path)
    assert str(caught.value).startswith(f"{path}: {said}")
    assert "\n" not in str(caught.value)


SHIPPED = [*Path("deploy").rglob("*.yaml"), *Path("experiments").rglob("*.yaml")]


@pytest.mark.parametrize("path", sorted(SHIPPED), ids=str)
def test_the_shipped_configurations_mean_what_they_meant(path: Path) -> None:
    assert parse_yaml(path.read_text()) == yaml.safe_load(path.read_text())
