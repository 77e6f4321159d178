"""``python -m deploy.serve --config FILE``: starts the whole service on this machine and stays until it is told to stop.

Prints one line ``ready http://HOST:PORT after N s`` once the first requests have been answered, and what to try next.
"""

import argparse
import contextlib
import ctypes
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from deploy import environment
from deploy.config import ADMIN_KEY_ENV, APP_NAME, REPOSITORY, ConfigError, DeployConfig, load
from deploy.startup import leftovers, start_failure
from nestedfp.admin_key import KEY_FILE_ENV

DEFAULT_CONFIG = REPOSITORY / "deploy" / "configs" / "demo.yaml"
# A signal that comes in the instant before a system call does not interrupt it: its handler runs when the call returns.
LONGEST_WAIT_S = 1.0


def main(argv: list[str] | None = None) -> int:
    """Run the service; return the exit status."""
    began_s = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m deploy.serve", description=__doc__)
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="deployment YAML (default: %(default)s)")
    parser.add_argument(
        "--check", action="store_true", help="say whether the service can be started with the file, and start nothing"
    )
    parser.add_argument("--verbose", action="store_true", help="show the log of every process on this terminal")
    parser.add_argument("--in-own-session", action="store_true", help=argparse.SUPPRESS)
    args, others = parser.parse_known_args(argv)
    if others:
        parser.error(
            f"unknown: {' '.join(others)}; vLLM's own options stand in the file of --config, under engine.extra"
        )
    try:
        config = load(args.config)
        preflight(config)
        if args.check:
            return check(config, args.config)
        check_port(config)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not args.in_own_session:
        return shield(["--config", str(args.config), *(["--verbose"] if args.verbose else [])])
    return run(config, args.config, args.verbose, began_s, key=sys.stdin.read())


def check(config: DeployConfig, path: Path) -> int:
    """Ask vLLM too, and say what the file describes; returns the exit status."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from deploy.startup.model_check import check_engine, check_model

    check_model(config)
    check_engine(config)
    print(
        f"{path}: can be started: {config.replicas} replica(s) of {config.model.id}, policy {config.controller.policy.name}"
    )
    return 0


def shield(arguments: list[str]) -> int:
    """Run the service in a session of its own and pass signals on; return its exit status.

    It reads the admin key of this process's environment, if there is one, from its standard input.

    A supervisor's stop, ``timeout`` and Ctrl-C signal the whole process group. The cluster's own servers would die of that
    before the streams have ended, and engines would stay behind; so only this process is in the group.
    """
    command = [sys.executable, "-m", "deploy.serve", "--in-own-session", *arguments]
    key = os.environ.pop(ADMIN_KEY_ENV, "")
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    service = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: _die_with_parent(before),
    )
    assert service.stdin is not None, "made as a pipe"
    for number in numbers:
        signal.signal(number, lambda *_: service.terminate())
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with contextlib.suppress(BrokenPipeError), service.stdin as pipe:
        pipe.write(key.encode())
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return service.wait(LONGEST_WAIT_S)


def _die_with_parent(mask: set[signal.Signals]) -> None:
    """In the new process: be told to stop when the parent is killed."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def preflight(config: DeployConfig) -> None:
    """Check in milliseconds what would otherwise fail after a minute of start-up.

    Raises:
        ValueError: the service was not tested with this version of Ray or vLLM.
        ConfigError: a CPU engine has no size for its KV cache, or there are too few GPUs.
        HAProxyMissing: there is none.
        CheckpointError: a shard is missing or damaged.
    """
    from deploy.access import keys
    from deploy.haproxy import launcher
    from deploy.startup.accelerator import resolve, visible_gpus
    from nestedfp.checkpoint import read_weights
    from nestedfp.hooks import versions

    if warning := versions.check(versions.TESTED_BY_SERVICE):
        print(f"warning: {warning}", file=sys.stderr)
    if (path := keys.path_of(config.http.keys_file)) is not None:
        keys.load(path)
    if config.model.load_format != "dummy":
        read_weights(config.model.folder)
    kind = resolve(config.engine.accelerator)
    ranks = config.most_replicas * config.engine.ranks
    if kind == "gpu" and (gpus := visible_gpus()) < ranks:  # Ray would wait for more for ever
        raise ConfigError(
            f"{'controller.ladder.max_replicas' if config.most_replicas > config.replicas else 'replicas'} "
            f"({config.most_replicas}) x engine.tensor_parallel_size ({config.engine.tensor_parallel_size})"
            + (" x pipeline stages" if config.engine.ranks > config.engine.tensor_parallel_size else "")
            + " need "
            f"{ranks} GPUs, this machine has {gpus} that CUDA may use"
            + ("" if gpus else "; for a start without one set engine.accelerator: cpu")
        )
    if kind == "cpu" and config.engine.kv_cache_bytes is None:
        raise ConfigError("engine.kv_cache_bytes is required on a CPU: the memory of one replica's KV cache, in bytes")
    launcher.binary()


def check_port(config: DeployConfig) -> None:
    """Refuse to start where somebody else listens."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((config.http.host, config.http.port))
        except OSError as error:
            raise ConfigError(
                f"http: cannot listen on {config.http.host}:{config.http.port} ({error.strerror}); "
                "stop the other service or set http.port"
            ) from None


@contextlib.contextmanager
def admin_key(given: str, folder: Path, runs: Path = REPOSITORY / "runs") -> Iterator[tuple[Path, str]]:
    """Have the admin key in a file of ``folder`` that this user alone can read; yields it, and where an operator finds the key.

    ``runs / "admin.key"`` leads to one that is made here, unless it leads to that of another service that runs.
    """
    path, link = folder / "admin.key", runs / "admin.key"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(given or secrets.token_urlsafe(24))
    if given:
        yield path, f"the environment ({ADMIN_KEY_ENV})"
    elif link.is_symlink() and leftovers.is_held(link.readlink().parent):
        yield path, str(path)
    else:
        runs.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(path)
        try:
            yield path, os.path.relpath(link, REPOSITORY)
        finally:
            link.unlink(missing_ok=True)


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


def run(config: DeployConfig, path: Path, verbose: bool, began_s: float, key: str) -> int:
    """Start Ray and the application, wait until told to stop, and shut everything down.

    Returns:
        The exit status: 0 when told to stop, 1 when the service did not come up, 2 when vLLM cannot use the model or the
        engine's arguments, which is said before anything is started.
    """
    # Inherited by every process of the local cluster, which starts with this one.
    os.environ.setdefault("RAY_DEDUP_LOGS", "1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if not verbose:
        # This process imports vLLM only to describe the deployment; what it warns about concerns the replicas.
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    url = f"http://{config.http.host}:{config.http.port}"
    session: Path | None = None
    with contextlib.ExitStack() as stack:
        try:
            stop_on_signals()
            folder = stack.enter_context(leftovers.own_folder())
            session = folder / "ray"
            key_file, where = stack.enter_context(admin_key(key, folder))
            os.environ |= environment.of(config, folder) | {KEY_FILE_ENV: str(key_file)}
            # Here, not in preflight: in the process that stays to pass signals on, what vLLM takes would be for nothing.
            from deploy.startup.model_check import check_model

            try:
                check_model(config)
            except ValueError as error:
                print(f"error: {error}", file=sys.stderr, flush=True)
                return 2
            print(
                f"starting {config.replicas} replica(s) of {config.model.id}; admin key in {where}; "
                f"logs in {session}/session_latest/logs",
                flush=True,
            )
            from ray import serve

            from deploy.app import applications
            from deploy.startup.local_ray import start_cluster, stop_cluster

            memory = stack.enter_context(leftovers.SharedMemory())
            processes = stack.enter_context(leftovers.no_process_left())
            stack.callback(stop_cluster, APP_NAME, config.http.drain_s)
            stack.callback(lambda: processes.extend(leftovers.descendants()))
            stack.callback(memory.look)
            start_cluster(config, session, verbose)
            stop_on_signals()  # again: Ray installs handlers of its own
            serve.run_many(applications(config, path))
            wait_for_http(url)
            print(f"ready {url} after {time.monotonic() - began_s:.0f} s", flush=True)
            print(next_steps(config, url, where), flush=True)
            while True:
                time.sleep(LONGEST_WAIT_S)
        except Stopped:
            print("stopping", flush=True)
            return 0
        except Exception as error:
            print(f"error: the service did not start: {start_failure.cause(error)}", file=sys.stderr, flush=True)
            if session is not None:
                keep_logs(session)
            return 1


def keep_logs(session: Path, runs: Path = REPOSITORY / "runs") -> None:
    """Keep the logs of a start that failed, in place of those of the one before."""
    kept = runs / "failed-start"
    shutil.rmtree(kept, ignore_errors=True)
    with contextlib.suppress(OSError):
        shutil.copytree(session / "session_latest" / "logs", kept, ignore_dangling_symlinks=True)
        print(f"its logs are in {os.path.relpath(kept, REPOSITORY)}", file=sys.stderr, flush=True)


def wait_for_http(url: str, timeout_s: float = 60.0) -> None:
    """Wait until a replica says through HTTP that it is ready; ``RuntimeError`` when it does not in time."""
    import httpx

    deadline_s = time.monotonic() + timeout_s
    with httpx.Client(base_url=url, timeout=10.0, trust_env=False) as client:
        while time.monotonic() < deadline_s:
            try:
                if client.get("/ready").status_code == 200:  # needs no key
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
    raise RuntimeError(f"{url}/ready did not answer within {timeout_s:.0f} s")


def next_steps(config: DeployConfig, url: str, key: str) -> str:
    """Return the lines: a request, the pages, and where the admin key is."""
    from deploy.access.keys import path_of

    body = json.dumps({"model": config.model.id, "prompt": "Once upon a time", "max_tokens": 40})
    bearer = "" if path_of(config.http.keys_file) is None else " -H 'Authorization: Bearer YOUR_KEY'"
    return "\n".join(
        [
            "try next:",
            f"  curl {url}/v1/completions{bearer} -H 'Content-Type: application/json' -d {shlex.quote(body)}",
            *([f"  control room  {url}/control"] if config.engine.quantization == "nestedfp" else []),
            f"  metrics       {url}/metrics",
            f"  admin key     {key}",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
