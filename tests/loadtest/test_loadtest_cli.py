"""The command line: its errors, and one whole load test. Run: python -m pytest tests/loadtest/test_loadtest_cli.py"""

import json

import pytest
from loadtest_builders import FAKE, fake_service

from loadtest import session
from loadtest.cli import main, parse_config
from loadtest.report import run_summary

pytestmark = pytest.mark.slow

URL = "--url http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "give either --config FILE (starts the service) or --url URL"),
        (f"--config x {URL}", "give either --config FILE"),
        ("--url http://10.0.0.1:8000", "the load goes to this machine only"),
        ("--url http://10.0.0.1:8000 --allow-host 10.0.0.2", "or 10.0.0.2 as --allow-host says, got '10.0.0.1'"),
        ("--config x --allow-host a", "--allow-host and --admin-key-file are for a running service"),
        ("--url 127.0.0.1:8000", "expected a URL such as http://127.0.0.1:8000, got '127.0.0.1:8000'"),
        (f"{URL} --policies fp16,fast", "--policies: expected different ones of fp16,fp8,"),
        (f"{URL} --policies plain,fp16", "a plain run takes no directives and stands alone"),
        (f"{URL} --policies plain=vllm", "or plain-NAME, got plain=vllm"),
        (f"{URL} --policies probe", "got probe"),
        (f"{URL} --policies fp16,fp16", "expected different ones of fp16,fp8,adaptive"),
        (f"{URL} --policies ,", "got none"),
        (f"{URL} --duration -5", "--duration: Input should be greater than 0, got -5"),
        (f"{URL} --duration 1e9", "--duration: Input should be less than or equal to 3600"),
        (f"{URL} --duration nan", "--duration: Input should be"),
        (f"{URL} --bogus", "unrecognized arguments: --bogus"),
    ],
)
def test_wrong_arguments_are_named(words, message, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words.split())
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_defaults_and_flags_reach_the_config():
    config = parse_config(["--config", "a.yaml"])
    assert config.policies == ("fp16", "fp8", "adaptive")
    flags = "--url http://localhost:8000/ --policies adaptive --rate 2 --slo-ttft-ms 5 --slo-tpot-ms 6"
    config = parse_config(flags.split())
    assert (config.url, config.policies) == ("http://localhost:8000", ("adaptive",))


def test_failures_are_one_line_and_status_1(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("NESTEDFP_ADMIN_KEY", "k")
    assert main(["--url", "http://127.0.0.1:9", "--out", str(tmp_path)]) == 1
    assert "GET http://127.0.0.1:9/v1/models: no answer" in capsys.readouterr().err
    assert not list(tmp_path.iterdir()), "a load test that did not begin leaves no folder"


def test_what_was_given_and_cannot_be_used_is_one_line_and_status_2(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("NESTEDFP_ADMIN_KEY", raising=False)
    files = {
        "broken.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n",
        "unknown.yaml": "model: {id: m, path: models/fairytales-8m}\nbogus: 1\n",
        "list.yaml": "- model\n",
        "plain.yaml": "model: {id: m, path: models/fairytales-8m}\nengine: {quantization: none}\n",
        "empty.key": "",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    url = ["--url", "http://127.0.0.1:9"]
    for words, said in (
        (url, "in the environment variable NESTEDFP_ADMIN_KEY; make serve leaves it in a file"),
        ([*url, "--admin-key-file", "{}/none.key"], "--admin-key-file: cannot read"),
        ([*url, "--admin-key-file", "{}/empty.key"], "empty.key; make serve leaves it in a file"),
        ([*url, "--trace", "{}/none.csv"], "none.csv: cannot read the trace"),
        ([*url, "--trace", "{}/broken.csv"], "broken.csv:2: TIMESTAMP"),
        ([*url, "--policies", "plain", "--out", "{}/empty.key"], "--out: cannot make the folder"),
        (["--config", "{}/unknown.yaml"], "unknown.yaml: bogus: unknown key; remove it"),
        (
            ["--config", "{}/plain.yaml"],
            "plain.yaml: engine.quantization is none, and a plain engine takes no directives: give",
        ),
        (["--config", "{}/list.yaml"], "list.yaml: expected a mapping with the keys"),
    ):
        assert main(["--out", str(tmp_path / "runs"), *(word.format(tmp_path) for word in words)]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


def test_a_whole_load_test_starts_the_service_and_writes_the_report(tmp_path, capsys, monkeypatch):
    """Three policies on a stand-in whose FP8 steps are four times as fast: the report must show the difference."""
    options = ["--max-running", "3", "--step-ms-fp16", "40", "--step-ms-fp8", "10"]
    monkeypatch.setattr(session, "serve_command", lambda config: [*FAKE, *options])
    config = tmp_path / "service.yaml"
    flags = "--duration 2 --probe 2 --probe-users 8 --cooldown 0 --drain 10 --load-fraction 1.5 --max-prompt-tokens 20"
    assert main(["--config", str(config), "--out", str(tmp_path / "runs"), *flags.split()]) == 0
    text = capsys.readouterr().out
    assert "report: " in text
    assert "FP16 only" in text
    (folder,) = (tmp_path / "runs").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    runs = {run["policy"]: run for run in summary["runs"]}
    assert list(runs) == ["fp16", "fp8", "adaptive"]
    assert {run["requests"] for run in runs.values()} == {summary["load"]["requests"]}
    assert {run["errors"] for run in runs.values()} == {0}
    assert runs["fp16"]["fp16_token_share"] == 1.0
    assert runs["fp8"]["fp16_token_share"] == 0.0
    assert 0.0 < runs["adaptive"]["fp16_token_share"] < 1.0
    assert runs["adaptive"]["switches"] > 0
    # A quarter, on a machine that does nothing else.
    assert runs["fp8"]["tpot_ms"]["p50"] < runs["fp16"]["tpot_ms"]["p50"]
    assert summary["load"]["mean_rate_rps"] == pytest.approx(1.5 * summary["carried_rps"], rel=0.2)
    assert summary["slo"] == {"ttft_ms": 300.0, "tpot_ms": 40.0}, "the service's"
    for run in runs.values():
        assert run["valid"] == (run["invalid_because"] is None) == (run["late_starts"] <= 0.01 * run["requests"])
    samples = [json.loads(line) for line in (folder / "timeline.jsonl").read_text().splitlines()]
    assert {sample["policy"] for sample in samples} == {"fp16", "fp8", "adaptive"}
    assert max(sample["status"]["replicas"][0]["waiting"] for sample in samples) > 0
    assert summary["service_slo"] == {"ttft_ms": 300.0, "tpot_ms": 40.0}, "of its status"
    assert summary["options"]["load_fraction"] == 1.5
    for name in ("report.html", "timeline.jsonl", "requests-fp16.jsonl", "requests-adaptive.jsonl", "opening.png"):
        assert (folder / name).stat().st_size > 500


GIVEN = "--rate 10 --duration 1 --drain 10 --cooldown 0 --slo-ttft-ms 500 --slo-tpot-ms 100 --max-prompt-tokens 20"


def run_against(tmp_path, options: list[str], flags: str) -> dict:
    """A load test of a running stand-in; returns its summary."""
    with fake_service(tmp_path, *options) as (url, *_):
        assert main(["--url", url, "--out", str(tmp_path / "runs"), *flags.split()]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    return json.loads((folder / "summary.json").read_text())


def test_a_plain_server_needs_no_key_no_directive_and_no_status(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("NESTEDFP_ADMIN_KEY", raising=False)
    summary = run_against(tmp_path, ["--plain"], f"--policies plain-vllm-serve {GIVEN}")
    (run,) = summary["runs"]
    assert (run["policy"], run["requests"], run["errors"]) == ("plain-vllm-serve", 10, 0)
    assert (run["switches"], run["max_waiting"]) == (None, None)
    assert "no directives" in summary["verdict"][0]
    assert "plain-vllm-serve" in capsys.readouterr().out


@pytest.mark.parametrize("answered", [False, True])
def test_a_load_test_of_which_nothing_was_answered_fails_and_says_why(answered, tmp_path, capsys, monkeypatch):
    """The stand-in fails every request whose prompt has 101 tokens."""
    monkeypatch.setattr(run_summary, "LATE_MS", 5000.0)  # one late request of three makes a run invalid
    monkeypatch.delenv("NESTEDFP_ADMIN_KEY", raising=False)
    lengths = [101, 101, 20 if answered else 101]
    trace = tmp_path / "t.csv"
    rows = [f"2023-11-16 18:17:00.{300 * place:03d},{tokens},5\n" for place, tokens in enumerate(lengths)]
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    flags = (
        "--policies plain --start 0 --rate 3 --duration 1 --drain 10 --cooldown 0 --slo-ttft-ms 500 --slo-tpot-ms 100"
    )
    with fake_service(tmp_path, "--plain") as (url, *_):
        status = main(["--url", url, "--out", str(tmp_path / "runs"), "--trace", str(trace), *flags.split()])
    (folder,) = (tmp_path / "runs").iterdir()
    (run,) = json.loads((folder / "summary.json").read_text())["runs"]
    told = capsys.readouterr()
    assert "report: " in told.out
    if answered:
        assert (status, run["valid"], run["errors"], told.err) == (0, True, 2, "")
        assert "2 of 3 requests failed; they count as SLO misses: 2 x HTTP 500: made to fail." in told.out
    else:
        assert (status, run["valid"], run["errors"]) == (1, False, 3)
        assert run["invalid_because"] == "none of 3 requests was answered: 3 x HTTP 500: made to fail"
        assert f"loadtest: plain: {run['invalid_because']}" in told.err


def test_a_server_without_a_controller_is_told_how_to_be_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("NESTEDFP_ADMIN_KEY", "k")
    with fake_service(tmp_path, "--plain") as (url, *_):
        assert main(["--url", url, "--out", str(tmp_path / "runs"), *GIVEN.split()]) == 1
    assert "a server without a controller takes no directives: give --policies plain" in capsys.readouterr().err


def test_a_plain_server_is_calibrated_by_itself_and_one_that_refuses_is_not_taken_for_broken(tmp_path, monkeypatch):
    monkeypatch.delenv("NESTEDFP_ADMIN_KEY", raising=False)
    flags = "--policies plain --probe 1 --probe-users 16 --duration 1 --drain 10 --cooldown 0 --max-prompt-tokens 20"
    with pytest.raises(AssertionError):
        run_against(tmp_path, ["--plain"], flags)
    flags += " --slo-ttft-ms 500 --slo-tpot-ms 100"
    assert run_against(tmp_path, ["--plain", "--admission", "10"], flags)["carried_rps"] > 0
