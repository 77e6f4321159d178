"""Builds the Ray Serve application from the configuration; wiring only.

``deploy.app:build`` is the import path for Serve configuration files: ``args: {config: path/to/file.yaml}``.
"""

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.config import DeploymentActorConfig

from deploy.config import APP_NAME, DeployConfig, load
from deploy.control.control_app import control_application, python_path
from deploy.control.controller_actor import ControllerActor
from deploy.control.controller_lookup import CONTROLLER_ACTOR
from deploy.haproxy.haproxy_config import CONTROL_PREFIX
from deploy.haproxy.launcher import require_environment
from deploy.replica.drain import LAST_WORDS_S
from deploy.replica.llm_replica import NestedFPServer
from deploy.startup.accelerator import resolve
from nestedfp.vllm_plugin.options import OPTIONS_KEY, PluginOptions

# vLLM takes an empty list for every domain. No URL has this one, and a client that sends a URL reads it.
NO_DOMAIN = "none; the operator may set engine.extra.allowed_media_domains"
PLAIN_WORKER = "nestedfp.vllm_plugin.ranks.plain_worker.PlainWorker"


def build(args: dict[str, str]) -> Any:
    """Entry point for Serve configuration files: the replicas, to be mounted at ``/``.

    Args:
        args: ``{"config": path of a deployment YAML}``; ``revision``, any text: Serve builds an application again, and reads the
            file, only if its arguments are not those of before.

    Raises:
        RuntimeError: the cluster's processes were started without the environment that this service needs.
    """
    require_environment()
    path = Path(args["config"])
    return application(load(path), path)


def build_control(args: dict[str, str]) -> Any:
    """Entry point for Serve configuration files: the control routes, to be mounted at ``/control``.

    Args:
        args: ``{"application": name of the application that has the replicas}``; without it, ``nestedfp``. ``keys_file`` says
            who may ask, as in the configuration.
    """
    return control_application(args.get("application", APP_NAME), args.get("keys_file"))


def application(config: DeployConfig, path: Path | None = None) -> Any:
    """Return the Serve application of a configuration, and of the file it came from, which a reload reads again."""
    # The replica's own HTTP server answers: nothing but HAProxy stands between it and the client.
    replica = serve.deployment(serve.ingress()(NestedFPServer), **deployment_options(config, path))
    # In sections, without the number of replicas: a change of it must restart none that runs.
    return replica.bind(
        model=config.model.id,
        arguments=engine_kwargs(config),
        engine=config.engine.model_dump(mode="json"),
        http=config.http.model_dump(mode="json"),
        controller=config.controller.model_dump(mode="json"),
    )


def applications(config: DeployConfig, path: Path) -> list[serve.RunTarget]:
    """Return both applications as ``serve.run_many`` takes them: the control routes answer when no replica does."""
    control = control_application(APP_NAME, config.http.keys_file)
    return [
        serve.RunTarget(control, name=f"{APP_NAME}-control", route_prefix=CONTROL_PREFIX),
        serve.RunTarget(application(config, path), name=APP_NAME, route_prefix="/"),
    ]


def deployment_options(config: DeployConfig, path: Path | None = None) -> dict[str, Any]:
    """Return Serve's options of the replicas. Each holds a processor for itself, and a GPU or a processor for each rank."""
    kind = resolve(config.engine.accelerator)
    ranks = config.engine.ranks
    env = {
        "PYTHONPATH": python_path(),
        "HF_HUB_OFFLINE": "1",  # models come from disk; without it the first chat request waits for the hub
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",  # from a domain that is allowed to one that is not
    }
    if kind == "cpu":
        # Of each rank of each replica: the cores, shared out, at least one.
        share = len(os.sched_getaffinity(0)) // (config.replicas * ranks)
        threads = config.engine.cpu_threads or max(1, share)
        env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads)}
    options: dict[str, Any] = {
        "name": f"{NestedFPServer.__name__}:{config.model.id.replace('/', '--').replace('.', '_')}",
        "num_replicas": config.replicas,
        "health_check_period_s": 2,
        "health_check_timeout_s": 10,
        "graceful_shutdown_timeout_s": config.http.drain_s + LAST_WORDS_S,
        "max_ongoing_requests": 1 << 20,  # admission control is this service's own
        "max_constructor_retry_count": 2,
        "ray_actor_options": {
            **({"num_cpus": 1 + ranks} if kind == "cpu" else {"num_cpus": 1, "num_gpus": ranks}),
            "runtime_env": {"env_vars": env},
        },
        "logging_config": {"enable_access_log": False},
    }
    if config.engine.quantization == "nestedfp":
        options["deployment_actors"] = [controller_actor(config, env, path)]
        if config.controller.ladder.scale:  # the controller sets the number of replicas
            del options["num_replicas"]
            options["autoscaling_config"] = {
                # No initial_replicas: Serve goes back to that number with every change of the deployment, amid an overload too.
                "min_replicas": config.replicas,
                "max_replicas": config.controller.ladder.max_replicas,
                # The ladder has waited long enough; Serve need not wait again.
                "upscale_delay_s": 0,
                "downscale_delay_s": 0,
                "metrics_interval_s": 2,
                "look_back_period_s": 4,
                "policy": {"policy_function": "deploy.scaling:replicas_wanted"},
            }
    return options


def engine_kwargs(config: DeployConfig) -> dict[str, Any]:
    """Return the arguments of each replica's vLLM engine; our scheduler and worker are filled in by the plugin."""
    engine = config.engine
    kwargs: dict[str, Any] = {
        "model": str(config.model.folder),
        "served_model_name": [config.model.id],
        "dtype": "float16",
        "load_format": config.model.load_format,
        "max_model_len": config.model.max_model_len,
        "tensor_parallel_size": engine.tensor_parallel_size,
        "max_num_seqs": engine.max_num_seqs,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "enforce_eager": engine.enforce_eager,
        "enable_prefix_caching": engine.enable_prefix_caching,
        "gpu_memory_utilization": engine.gpu_memory_utilization,
    }
    if engine.ranks > 1:
        kwargs["distributed_executor_backend"] = "mp"
    kwargs |= engine.extra
    kwargs["allowed_media_domains"] = kwargs.get("allowed_media_domains") or [NO_DOMAIN]
    if "tool_call_parser" in engine.extra:  # vLLM would take no notice of it
        kwargs["enable_auto_tool_choice"] = True
    if engine.kv_cache_bytes is not None:
        kwargs["kv_cache_memory_bytes"] = engine.kv_cache_bytes
    if engine.quantization == "nestedfp":
        kwargs["quantization"] = "nestedfp"
        shared = {field.name for field in fields(PluginOptions)} & set(type(engine).model_fields)
        options = {name: value for name in shared if (value := getattr(engine, name)) is not None}
        # Without an SLO of its own: the controller's directive carries it.
        kwargs["additional_config"] = {OPTIONS_KEY: {**options, "slo": None}}
    else:
        kwargs.setdefault("worker_cls", PLAIN_WORKER)
    return kwargs


def controller_actor(config: DeployConfig, env: dict[str, str], path: Path | None = None) -> DeploymentActorConfig:
    """Return the controller as an actor that Serve starts with the deployment and replaces when it dies."""
    return DeploymentActorConfig(
        name=CONTROLLER_ACTOR,
        actor_class=ray.remote(ControllerActor),
        init_kwargs={
            "config": config.controller.model_dump(mode="json"),
            "log_path": config.decision_log,
            "config_path": None if path is None else str(path.resolve()),
        },
        actor_options={"num_cpus": 0, "runtime_env": {"env_vars": env}},
    )
