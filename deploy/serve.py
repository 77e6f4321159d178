"""``python -m deploy.serve --config FILE``: starts the whole service on this machine and stays until it is told to stop.

Prints one line ``ready http://HOST:PORT after N s`` once the first requests have been answered.
"""

import argparse
import contextlib
import os
import secrets
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from deploy import environment
from deploy.config import ADMIN_KEY_ENV, REPOSITORY, ConfigError, DeployConfig, load

DEFAULT_CONFIG = REPOSITORY / "deploy" / "configs" / "demo.yaml"


def main(argv: list[str] | None = None) -> int:
    """Run the service; return the exit status."""
    began_s = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m deploy.serve", description=__doc__)
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="deployment YAML (default: %(default)s)")
    parser.add_argument("--verbose", action="store_true", help="show the log of every process on this terminal")
    args = parser.parse_args(argv)
    try:
        config = load(args.config)
        preflight(config)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return run(config, args.config, args.verbose, began_s)


def preflight(config: DeployConfig) -> None:
    """Check in milliseconds what would otherwise fail after a minute of start-up.

    Raises:
        ConfigError: the port is taken, HAProxy is missing, a CPU engine has no size for its KV cache, or there are too few
            GPUs.
        CheckpointError: a shard is missing or damaged.
    """
    import socket

    from deploy import haproxy
    from deploy.accelerator import resolve, visible_gpus
    from nestedfp.checkpoint import verify_shards

    if config.model.load_format != "dummy":
        verify_shards(config.model.folder)
    kind = resolve(config.engine.accelerator)
    ranks = config.most_replicas * config.engine.tensor_parallel_size
    if kind == "gpu" and 0 < visible_gpus() < ranks:
        # Ray would wait for more for ever. No device file at all: another kind of machine, which Ray may know better.
        raise ConfigError(
            f"{'controller.ladder.max_replicas' if config.most_replicas > config.replicas else 'replicas'} "
            f"({config.most_replicas}) x engine.tensor_parallel_size ({config.engine.tensor_parallel_size}) need "
            f"{ranks} GPUs, this machine has {visible_gpus()}"
        )
    if kind == "cpu" and config.engine.kv_cache_bytes is None:
        raise ConfigError("engine.kv_cache_bytes is required on a CPU: the memory of one replica's KV cache, in bytes")
    try:
        haproxy.binary()
    except haproxy.HAProxyMissing as error:
        raise ConfigError(str(error)) from None
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((config.http.host, config.http.port))
        except OSError as error:
            raise ConfigError(
                f"http: cannot listen on {config.http.host}:{config.http.port} ({error.strerror}); "
                "stop the other service or set http.port"
            ) from None


def admin_key() -> str:
    """Return where the admin key comes from, having made one if the environment has none."""
    if os.environ.get(ADMIN_KEY_ENV):
        return f"the environment ({ADMIN_KEY_ENV})"
    path = REPOSITORY / "runs" / "admin.key"
    path.parent.mkdir(exist_ok=True)
    os.environ[ADMIN_KEY_ENV] = secrets.token_urlsafe(24)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(os.environ[ADMIN_KEY_ENV])
    return str(path.relative_to(REPOSITORY))


class Stopped(Exception):
    """SIGINT or SIGTERM arrived."""


def stop_on_signals() -> None:
    """Turn SIGINT and SIGTERM into ``Stopped`` in the main thread. Later signals are ignored: the shutdown is under way."""

    def stop(*_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise Stopped

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def run(config: DeployConfig, path: Path, verbose: bool, began_s: float) -> int:
    """Start Ray and the application, wait until told to stop, and shut everything down."""
    where = admin_key()
    # Inherited by every process of the local cluster, which starts with this one.
    os.environ.setdefault("RAY_DEDUP_LOGS", "1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if not verbose:
        # This process imports vLLM only to describe the deployment; what it warns about concerns the replicas.
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    folder = environment.private_folder()
    os.environ |= environment.of(config, folder)
    print(f"starting {config.replicas} replica(s) of {config.model.id}; admin key in {where}", flush=True)
    import ray
    from ray import serve

    from deploy.app import applications
    from deploy.cluster import start_cluster

    url = f"http://{config.http.host}:{config.http.port}"
    try:
        stop_on_signals()
        start_cluster(config, verbose)
        stop_on_signals()  # again: Ray installs handlers of its own
        serve.run_many(applications(config, path))
        wait_for_http(url)
        print(f"ready {url} after {time.monotonic() - began_s:.0f} s", flush=True)
        threading.Event().wait()
        raise AssertionError("only a signal ends the wait")
    except Stopped:
        print("stopping", flush=True)
        return 0
    except Exception as error:
        print(f"error: the service did not start: {error}", file=sys.stderr, flush=True)
        return 1
    finally:
        with contextlib.suppress(Exception):  # nothing to end when the start failed early
            serve.shutdown()
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def wait_for_http(url: str, timeout_s: float = 60.0) -> None:
    """Wait until the models route answers through HTTP.

    Raises:
        RuntimeError: when it does not in time.
    """
    import httpx

    deadline_s = time.monotonic() + timeout_s
    with httpx.Client(base_url=url, timeout=10.0, trust_env=False) as client:
        while time.monotonic() < deadline_s:
            try:
                if client.get("/v1/models").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
    raise RuntimeError(f"{url}/v1/models did not answer within {timeout_s:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
