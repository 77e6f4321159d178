"""The manuals name what is there."""

import re
from pathlib import Path

import pytest
import torch
import yaml

from controller.config import ControllerConfig, LadderConfig
from controller.policies import POLICIES
from deploy.config import DeployConfig, EngineSection, HttpSection, ModelSection
from docs.draw import __main__ as draw
from docs.draw import burst
from docs.tables import __main__ as tables
from docs.tables.marks import MarkError, filled
from nestedfp.format import split

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "benchmarks",
    "controller",
    "csrc",
    "deploy",
    "docs",
    "experiments",
    "k8s",
    "loadtest",
    "models",
    "nestedfp",
    "simulator",
    "tests",
    "workload",
)
NAMED = re.compile(rf"(?<![\w/])(?:{'|'.join(PACKAGES)})/[A-Za-z0-9_./-]*\.(?:py|json|yaml|csv|h|cpp|cu|cuh|inc)\b")


SOURCES = [path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
MANUALS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [*MANUALS, ROOT / "CHANGELOG.md", *sorted((ROOT / "models").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_page_and_a_heading_that_are_there(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def test_every_table_shows_what_was_measured(capsys) -> None:
    assert tables.main(["--check"]) == 0, capsys.readouterr().out


def test_a_table_that_differs_from_its_data_is_found_and_written(tmp_path, capsys) -> None:
    (tmp_path / "docs").mkdir()
    page = tmp_path / "README.md"
    page.write_text(
        "before\n<!-- table engine h100-engine\nllama-8b 256 512: 1\n-->\n| 99.9 |\n<!-- /table -->\nbehind\n"
    )
    assert tables.main(["--check"], tmp_path) == 1
    assert "99.9" in page.read_text()
    assert tables.main([], tmp_path) == tables.main(["--check"], tmp_path) == 0
    assert page.read_text().startswith(
        "before\n<!-- table engine h100-engine\nllama-8b 256 512: 1\n-->\n`python -m benchmarks.engine"
    )
    assert page.read_text().endswith("|\n<!-- /table -->\nbehind\n")
    for mark in (
        "<!-- table no-such -->\n<!-- /table -->",
        "<!-- table services\nno-such 19\n-->\n<!-- /table -->",
        "<!-- table services\n24b-one 18\n-->\n<!-- /table -->",
        "<!-- table services\n24b-one 19: no-such\n-->\n<!-- /table -->",
        "<!-- table services\n24b-one nineteen\n-->\n<!-- /table -->",
        "<!-- table engine h100-engine\nllama-8b 1 1: 1\n-->\n<!-- /table -->",
        "<!-- table gemm -->\n<!-- /table -->",
    ):
        page.write_text(mark)
        capsys.readouterr()
        assert tables.main(["--check"], tmp_path) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: README.md: ")
        assert error.count("\n") == 1
        assert page.read_text() == mark


def test_a_table_has_the_rows_that_its_mark_names_and_what_they_share_once() -> None:
    mark = "<!-- table services\n24b-one 19: vllm-fp16 token_fraction\n8b-one 66: fp8\n24b-rows-h200 19: default\n-->\n"
    text = filled(f"{mark}<!-- /table -->", tables.TABLES)
    assert text.startswith(mark)
    assert filled(text, tables.TABLES) == text
    assert re.findall(r"^\| ([^|]*) \| ([^|]*) \| \d", text, re.MULTILINE) == [
        ("24b-one, 19/s", "`vllm serve` FP16"),
        ("", "`token_fraction`"),
        ("8b-one, 66/s", "FP8 alone"),
        ("24b-rows-h200, 19/s", "**default**"),
    ]
    assert text.count("random weights") == text.count("lengths times 0.4") == 1


@pytest.mark.parametrize("text", ["<!-- table a -->\n", "<!-- table a -->\n<!-- table a -->\n<!-- /table -->"])
def test_a_table_without_an_end_is_refused(text: str) -> None:
    with pytest.raises(MarkError, match="expected <!-- /table --> behind each"):
        filled(text, {"a": lambda: "table"})


def test_the_configuration_of_the_manual_has_every_key_with_its_default() -> None:
    chapter = (ROOT / "docs" / "serving.md").read_text().partition("## Configure")[2].partition("\n## ")[0]
    lines = re.findall(r"^ {4}.*$", chapter, re.MULTILINE)
    shown = yaml.safe_load("\n".join(lines))
    sections = {"model": ModelSection, "engine": EngineSection, "http": HttpSection}
    assert set(shown) == set(DeployConfig.model_fields)
    assert {name: set(shown[name]) for name in sections} == {
        name: set(section.model_fields) for name, section in sections.items()
    }
    model = {key: shown["model"][key] for key in ("id", "path")}
    assert DeployConfig.model_validate(shown) == DeployConfig.model_validate({"model": model})


@pytest.mark.parametrize("manual", MANUALS, ids=lambda path: path.name)
def test_every_option_and_target_that_a_manual_gives_to_a_command_of_ours_is_there(manual: Path) -> None:
    text = re.sub(r"\\\n\s*", " ", manual.read_text())
    unknown: set[str] = set()
    commands = re.findall(rf"-m ({'|'.join(PACKAGES)})\b([^`#\n]*)", text)
    if manual.stem in PACKAGES:  # of a command's own page: lines of options alone
        commands += [(manual.stem, options) for options in re.findall(r"^ {3}( --[^#\n]*)", text, re.MULTILINE)]
    for package, words in commands:
        source = "".join(path.read_text() for path in (ROOT / package).rglob("*.py"))
        unknown |= {option for option in re.findall(r"(?<=\s)--[a-z][a-z-]+", words) if f'"{option}"' not in source}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    unknown |= set(re.findall(r"(?:^    |`)make ([a-z][a-z-]+)", text, re.MULTILINE)) - targets
    assert not unknown - {"--help"}


def test_the_controllers_sections_of_the_manual_have_every_key_with_its_default() -> None:
    text = (ROOT / "docs" / "policies.md").read_text()
    shown = [
        yaml.safe_load(block) for block in re.findall(r"^    (?:policy|ladder):\n(?: {5,}.*\n)+", text, re.MULTILINE)
    ]
    policies = [block["policy"] for block in shown if "policy" in block]
    assert {policy["name"] for policy in policies} == set(POLICIES) - {"static_fp16", "static_fp8"}
    for policy in policies:
        default = ControllerConfig.model_validate({"policy": {"name": policy["name"]}}).policy
        assert set(policy) == set(type(default).model_fields)
        assert ControllerConfig.model_validate({"policy": policy}).policy == default
    others = {name: section for block in shown for name, section in block.items() if name != "policy"}
    assert {name: set(section) for name, section in others.items()} == {
        "ladder": set(LadderConfig.model_fields),
    }
    assert ControllerConfig.model_validate(others) == ControllerConfig()


def test_every_family_of_metrics_stands_in_the_manual_and_no_other() -> None:
    told = {
        name.removesuffix("_total")
        for name in re.findall(r"`(nestedfp_[a-z0-9_]+)`", (ROOT / "docs/metrics.md").read_text())
    }
    pages = [*(ROOT / "deploy/metrics").glob("*.py"), ROOT / "nestedfp/vllm_plugin/serving/engine_families.py"]
    made = {name for page in pages for name in re.findall(r'"(nestedfp_[a-z0-9_]+)"', page.read_text())}
    assert told == {name for name in made if not name.startswith("nestedfp_controller_")} | {"nestedfp_controller_up"}


def test_every_policy_has_its_chapter() -> None:
    assert {f"## `{name}`" for name in POLICIES} <= set((ROOT / "docs" / "policies.md").read_text().splitlines())


@pytest.mark.parametrize("manual", MANUALS, ids=lambda path: path.name)
def test_every_file_of_ours_that_a_manual_names_is_there(manual: Path) -> None:
    named = set(NAMED.findall(manual.read_text()))
    assert not {name for name in named if not (ROOT / name).exists()}


@pytest.mark.parametrize("manual", MANUALS, ids=lambda path: path.name)
def test_every_file_that_a_manual_names_by_the_end_of_its_path_is_there(manual: Path) -> None:
    ends = {"/".join(path.parts[start:]) for path in SOURCES for start in range(len(path.parts))}
    assert not set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", manual.read_text())) - ends


def test_the_picture_of_the_bits_shows_the_planes_of_the_format() -> None:
    shown = re.findall(r'monospace">([01])<', (ROOT / "docs/pictures/bits.svg").read_text())
    weight = torch.tensor([int("".join(shown[:16]), 2)], dtype=torch.uint16).view(torch.float16)
    assert "".join(shown[16:]) == "".join(f"{plane.item():08b}" for plane in split(weight))


def test_the_readme_says_of_the_burst_what_its_picture_shows() -> None:
    shown = re.findall(r"<!-- [^>]*: ([0-9.]+ %) within the SLO -->", (ROOT / "docs/pictures/burst.svg").read_text())
    said = (ROOT / "README.md").read_text().partition("![One burst")[2].partition("##")[0]
    assert len(shown) == 3
    assert not [share for share in shown if share not in said]


@pytest.mark.parametrize("manual", [*MANUALS, ROOT / "Makefile"], ids=lambda path: path.name)
def test_every_command_of_ours_that_a_manual_names_is_there(manual: Path) -> None:
    named = set(re.findall(rf"-m ((?:{'|'.join(PACKAGES)})(?:\.\w+)*)", manual.read_text()))
    places = {name: ROOT / name.replace(".", "/") for name in named}
    assert not {
        name
        for name, path in places.items()
        if not (path.with_suffix(".py").exists() or (path / "__main__.py").exists())
    }


def test_the_help_of_the_plots_draws_none(capsys, monkeypatch):
    monkeypatch.setattr(burst, "draw", lambda: pytest.fail("drawn"))
    with pytest.raises(SystemExit) as caught:
        draw.main(["--help"])
    assert caught.value.code == 0
    assert "Draws the plots of the documents" in capsys.readouterr().out
