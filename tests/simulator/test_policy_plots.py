"""The plots' command: they come from the simulator, and what is committed is what it makes."""

from pathlib import Path

import pytest

from controller.policies import POLICIES
from simulator.plots import policies as command
from simulator.plots.load_curve import CURVE, Knot, arrivals, load_at

pytestmark = pytest.mark.slow

PLOTS = Path(__file__).resolve().parents[2] / "docs" / "plots"


def test_arrivals_follow_the_curve() -> None:
    curve = (Knot(0, 0.5), Knot(1000, 0.5), Knot(1000.001, 1.0), Knot(2000, 1.0))
    at_s = [request.at_s for request in arrivals(curve, 10.0, 100, 10, seed=0)]
    first = sum(moment < 1000 for moment in at_s)
    assert first == pytest.approx(5000, rel=0.05)
    assert len(at_s) - first == pytest.approx(10000, rel=0.05)
    assert load_at(CURVE, 75) == pytest.approx(0.75)


def test_the_command_draws_a_policy_and_prints_its_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--out", str(tmp_path), "--policy", "static_fp8"]) == 0
    assert (tmp_path / "static_fp8.svg").read_text().lstrip().startswith("<?xml")
    assert "static_fp8" in capsys.readouterr().out


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_has_a_small_plot_and_a_chapter(name: str) -> None:
    assert 10_000 < (PLOTS / f"{name}.svg").stat().st_size < 60_000
    text = (PLOTS.parent / "policies.md").read_text()
    assert f"plots/{name}.svg" in text
    assert f"## `{name}`" in text
    for parameter in POLICIES[name].config.model_fields:
        assert f"`{parameter}`" in text, f"docs/policies.md does not name {name}.{parameter}"
