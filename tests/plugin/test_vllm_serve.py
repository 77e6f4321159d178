"""A plain ``vllm serve`` with nested weights: control and disclosure through vLLM's own plugin points."""

import importlib.util
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path

import adapters
import httpx
import pytest
from live_service import wait_until
from processes import ROOT

from deploy.environment import free_ports

pytestmark = [pytest.mark.serve, pytest.mark.filterwarnings("ignore")]

(PORT,) = free_ports(1)  # another server of this machine may have any fixed one, and would answer
MODEL = "models/fairytales-8m"
# Twice the default's time to the first token, so that the option is what the engine goes by.
OPTIONS = {"nestedfp": {"slo": {"ttft_ms": 400}}}
ARGUMENTS = [
    *("--quantization", "nestedfp", "--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "8"),
    *("--kv-cache-memory-bytes", str(64 << 20), "--host", "127.0.0.1", "--port", str(PORT)),
    *("--additional-config", json.dumps(OPTIONS)),
]
APART = httpx.Limits(max_keepalive_connections=0)  # a connection each, so that every API server is asked
KEY = {"Authorization": "Bearer a-key"}
AUTO = {"mode": "auto", "slo": OPTIONS["nestedfp"]["slo"]}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vllm")
    lora = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"storm={adapters.save(folder / 'storm')}")
    with served(folder, *lora) as client:
        yield client


@contextmanager
def served(folder, *more):
    """Run ``vllm serve`` with more arguments; yields a client."""
    if not entry_points(group="vllm.platform_plugins", name="nestedfp"):
        pytest.fail("the package was installed before it had this plugin: run 'make setup'")
    (folder / "key").write_text("a-key\n")
    environment = {
        "NESTEDFP_ADMIN_KEY_FILE": str(folder / "key"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_RPC_BASE_PATH": str(folder),
    }
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("vllm")), "serve", MODEL, *ARGUMENTS, *more],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{PORT}", timeout=60, trust_env=False, limits=APART) as client:
                assert wait_until(lambda: up(client) or process.poll() is not None, 600, 1.0)
                assert up(client), (folder / "log").read_text()[-3000:]
                yield client
        finally:
            process.terminate()
            process.wait(60)


def up(client):
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def ask(client, **more):
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8, "ignore_eos": True, **more}
    return client.post("/v1/completions", json=body)


@contextmanager
def directed(client, order):
    """Have a directive in force meanwhile."""
    assert client.post("/nestedfp/directive", json=order, headers=KEY).json() == {"mode": order["mode"]}
    try:
        yield
    finally:
        client.post("/nestedfp/directive", json=AUTO, headers=KEY)


def events(answer):
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line.startswith("data: {")]


def test_the_slo_is_kept_from_the_start(client):
    stats = client.get("/nestedfp/stats").json()
    assert (stats["directive"], stats["epoch"]) == ("auto", 0)
    answer = ask(client)
    assert answer.headers["x-nestedfp-precision"] == "auto"
    assert client.get("/nestedfp/stats").json()["fp8_weight_share"] > 0.5  # the workers were asked


def test_an_adapter_is_a_model_with_exact_and_fast_answers_of_its_own(client):
    assert {card["id"] for card in client.get("/v1/models").json()["data"]} == {MODEL, "storm"}
    found = {}
    for model in (MODEL, "storm"):
        for precision in ("exact", "fast"):
            with directed(client, {"mode": "fp8"}):
                answer = ask(client, model=model, precision=precision, logprobs=1, max_tokens=2).json()
            assert (answer["model"], answer["usage"]["precision"]) == (model, precision)
            found[model, precision] = str(answer["choices"][0]["logprobs"]["token_logprobs"])
    assert len(set(found.values())) == 4
    assert ask(client, model="calm").status_code == 404


def test_answers_disclose_their_precision_and_the_directive_changes_it(client):
    with directed(client, {"mode": "fp16"}):
        usage = ask(client).json()["usage"]
        assert (usage["precision"], usage["precision_tokens"]["completion"]) == ("exact", {"fp16": 8, "fp8": 0})
    with directed(client, {"mode": "fp8"}):
        answer = ask(client)
        assert answer.headers["x-nestedfp-precision"] == answer.json()["usage"]["precision"] == "fast"
        assert answer.json()["usage"]["precision_tokens"]["completion"] == {"fp16": 0, "fp8": 8}


@pytest.mark.parametrize(
    "pin",
    [
        {"json": {"precision": "exact"}},
        {"json": {"precision": "fp16"}},
        {"json": {"vllm_xargs": {"precision": "exact"}}},
        {"headers": {"X-NestedFP-Precision": "exact"}},
        {"json": {"precision": "auto"}, "headers": {"x-nestedfp-precision": "exact"}},
    ],
    ids=str,
)
def test_a_pin_in_body_or_header_is_kept_whatever_the_directive(client, pin):
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 4, "ignore_eos": True, **pin.get("json", {})}
    with directed(client, {"mode": "fp8"}):
        answer = client.post("/v1/completions", json=body, headers=pin.get("headers"))
    assert answer.headers["x-nestedfp-precision"] == answer.json()["usage"]["precision"] == "exact"


def test_auto_with_an_slo_is_the_engines_own_choice(client):
    with directed(client, {"mode": "auto", "slo": {"ttft_ms": 1e-2, "tpot_ms": 1e6}}):
        tokens = ask(client, prompt="Once upon a time there was a dog").json()["usage"]["precision_tokens"]
    assert (tokens["prompt"]["fp16"], tokens["completion"]["fp16"]) == (0, 0), "an answer is fast as a whole"


@pytest.mark.parametrize("include", [True, False])
def test_a_stream_discloses_in_its_usage(client, include):
    answer = ask(
        client, stream=True, n=2, stream_options={"include_usage": include}, precision="exact", temperature=1.0
    )
    assert answer.text.endswith("data: [DONE]\n\n")
    *_, last = (chunk["usage"] for chunk in events(answer) if chunk.get("usage"))
    assert (last["precision"], last["precision_tokens"]["completion"]) == ("exact", {"fp16": 16, "fp8": 0})
    assert (last["prompt_tokens"], last["completion_tokens"]) == (5, 16)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 4}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hello"}]}),
    ],
)
def test_every_route_for_text_discloses_and_pins(client, path, body, stream):
    body = {"model": MODEL, "max_tokens": 4, "stream": stream, **body}
    with directed(client, {"mode": "fp8"}):
        answer = client.post(path, json=body, headers={"x-nestedfp-precision": "exact"})
    assert answer.status_code == 200, answer.text
    said = answer.text if stream else json.dumps(answer.json(), separators=(",", ":"))
    assert said.count('"precision":"exact"') == 1, said


def test_vllms_page_of_metrics_says_what_the_engine_does(client):
    ask(client, precision="exact")
    # A busy engine may not answer in time; the page is without it then.
    page = wait_until(lambda: "nestedfp_" in (text := client.get("/metrics").text) and text, 30)
    assert 'nestedfp_tokens_total{precision="fp16"}' in page
    assert 'nestedfp_directive{mode="auto"} 1.0' in page
    assert 'nestedfp_step_seconds_total{precision="fp16"}' in page
    assert "vllm:" in page


def test_wrong_pins_and_wrong_orders_are_refused(client):
    for wrong in (
        {"precision": "fp4"},
        {"vllm_xargs": {"precision": "fp4"}},
        {"precision": 8},
        {"precision": ["exact"]},
    ):
        answer = ask(client, **wrong)
        assert (answer.status_code, "precision must be" in answer.json()["error"]["message"]) == (400, True)
    answer = client.post("/v1/completions", json={"precision": "exact"}, headers={"x-nestedfp-precision": "fast"})
    assert "leave one of the two out" in answer.json()["error"]["message"]
    assert ask(client, precision="exact", use_beam_search=True, n=2).status_code == 400
    assert ask(client, prompt=[4096]).status_code == 400
    assert client.post("/nestedfp/directive", json={"mode": "fp8"}).status_code == 401
    for wrong in ({"mode": "fp4"}, {"mode": "auto", "slo": {"ttft_ms": "fast"}}, {}, [], 1):
        assert client.post("/nestedfp/directive", json=wrong, headers=KEY).status_code == 400
    for body in (b"", b"[1]", b"{", b'"precision"'):
        assert client.post("/v1/completions", content=body).status_code in (400, 422)
    assert ask(client).status_code == 200


HARNESS = "requirements/harness.txt"
# Tales whose next words are known; the others are of other tales.
TALES = (
    ("Once upon a time there was a king who had three", " daughters", " axes of the"),
    ("The wolf came to the door and said: Let me", " in", " yesterday of"),
    ("She went into the forest and lost her", " way", " thirty"),
    ("And they lived happily ever", " after", " whom"),
    ("The old woman was a wicked", " witch", " quickly"),
    ("He cut off the dragon's", " head", " therefore"),
)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason=f"needs lm-eval: pip install -r {HARNESS}")
@pytest.mark.parametrize("asked", ["exact", "fast", "auto"])
def test_lm_evaluation_harness_runs_unchanged_in_every_class(client, tmp_path, asked):
    lines = [json.dumps({"context": text, "choices": choices, "answer": 0}) for text, *choices in TALES]
    (tmp_path / "tales.jsonl").write_text("\n".join(lines))
    task = {
        **{"task": "tales", "dataset_path": "json", "test_split": "test", "output_type": "multiple_choice"},
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "tales.jsonl")}},
        **{"doc_to_text": "{{context}}", "doc_to_choice": "choices", "doc_to_target": "answer", "target_delimiter": ""},
        "metric_list": [{"metric": "acc"}],
    }
    (tmp_path / "tales.yaml").write_text(json.dumps(task))
    url, header = f"http://127.0.0.1:{PORT}/v1/completions", {"x-nestedfp-precision": asked}
    model = {"model": MODEL, "base_url": url, "header": header, "tokenizer_backend": "huggingface", "max_length": 256}
    before = client.get("/nestedfp/stats").json()
    with directed(client, AUTO if asked == "auto" else {"mode": "fp8"}):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--tasks", "tales"),
                *("--include_path", str(tmp_path), "--model_args", json.dumps(model)),
                *("--output_path", str(tmp_path / "out"), "--log_samples"),
            ],
            cwd=ROOT,
            env={**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    after = client.get("/nestedfp/stats").json()
    computed = {mode: after[f"tokens_{mode}"] - before[f"tokens_{mode}"] for mode in ("fp16", "fp8")}
    assert computed["fp16"] + computed["fp8"] > 100
    if asked != "auto":
        assert computed["fp8" if asked == "exact" else "fp16"] == 0
    (results,) = (tmp_path / "out").rglob("results_*.json")
    assert json.loads(results.read_text())["results"]["tales"]["acc,none"] > 0.5
    assert_the_same_from_transformers(
        next((tmp_path / "out").rglob("samples_*.jsonl")), 0.02 if asked == "exact" else 1
    )


def assert_the_same_from_transformers(samples, tolerance):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(ROOT / MODEL)
    model = AutoModelForCausalLM.from_pretrained(ROOT / MODEL, dtype=torch.float32)

    def ids(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]  # as the harness has them

    for line in samples.read_text().splitlines():
        sample = json.loads(line)
        for choice, ((said, _), *_) in zip(sample["doc"]["choices"], sample["resps"], strict=True):
            context = sample["doc"]["context"]
            begin, whole = len(ids(context)), ids(context + choice)
            logits = model(input_ids=torch.tensor([whole])).logits[0].log_softmax(-1)
            expected = sum(float(logits[i - 1, whole[i]]) for i in range(begin, len(whole)))
            assert float(said) == pytest.approx(expected, abs=tolerance * (len(whole) - begin))
