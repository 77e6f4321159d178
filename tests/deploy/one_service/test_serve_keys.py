"""The running service with keys: who gets in over HTTP, and that no key shows in a log or in another process's environment."""

import re
from pathlib import Path

import psutil
import pytest
import yaml
from keyed_service import SECRETS, client_of
from live_service import ADMIN, KEY, MODEL, wait_until

pytestmark = pytest.mark.serve


def codes(name, **headers):
    """Status codes of what a holder of a key may try, by route."""
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 2}
    with client_of(name) as own:
        return {
            "models": own.get("/v1/models", headers=headers).status_code,
            "completion": own.post("/v1/completions", json=body, headers=headers).status_code,
            "pinned": own.post("/v1/completions", json={**body, "vllm_xargs": {"precision": "fp16"}}).status_code,
            "status": own.get("/status").status_code,
            "decisions": own.get("/decisions").status_code,
            "reload": own.post("/admin/reload").status_code,
            "metrics": own.get("/metrics").status_code,
            "health": own.get("/health").status_code,
            "ready": own.get("/ready").status_code,
        }


OPEN = {"metrics": 200, "health": 200, "ready": 200}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (None, {"models": 401, "completion": 401, "pinned": 401, "status": 401, "decisions": 401, "reload": 401}),
        ("user", {"models": 200, "completion": 200, "pinned": 403, "status": 403, "decisions": 403, "reload": 403}),
        ("pin", {"models": 200, "completion": 200, "pinned": 200, "status": 403, "decisions": 403, "reload": 403}),
        ("admin", {"models": 200, "completion": 200, "pinned": 200, "status": 200, "decisions": 200, "reload": 200}),
    ],
)
def test_a_key_opens_what_its_role_says(service, name, expected):
    assert codes(name) == expected | OPEN


def test_the_admin_key_still_opens_the_control_routes_and_is_no_key_for_answers(service):
    with client_of(None) as own:
        assert own.get("/status", headers=ADMIN).status_code == 200
        assert own.post("/admin/reload", headers=ADMIN).status_code == 200
        assert own.get("/v1/models", headers=ADMIN).status_code == 401


def test_a_withdrawn_key_is_refused_within_seconds_and_the_others_stay(service):
    path = service.keys
    before = path.read_text()
    entries = yaml.safe_load(before)["keys"]
    try:
        path.write_text(yaml.safe_dump({"keys": [entry for entry in entries if entry["name"] != "user"]}))
        with client_of("user") as own:
            assert wait_until(lambda: own.get("/v1/models").status_code == 401, 20)
        with client_of("pin") as own:
            assert own.get("/v1/models").status_code == 200
    finally:
        path.write_text(before)
    with client_of("user") as own:
        assert wait_until(lambda: {own.get("/v1/models").status_code for _ in range(8)} == {200}, 20), (
            "known again to both"
        )


def test_no_key_shows_in_a_log_or_in_the_environment_of_a_process(service):
    wanted = [secret.encode() for secret in [*SECRETS.values(), KEY]]
    session = re.search(r"logs in (\S+)", service.log.read_text())[1]
    logs = [path for path in [service.log, *service.access_logs, *Path(session).rglob("*")] if path.is_file()]
    assert len(logs) > 10
    found = [path for path in logs if any(key in path.read_bytes() for key in wanted)]
    assert not found
    for process in psutil.Process(service.process.pid).children(recursive=True):
        try:
            values = " ".join(process.environ().values())
        except psutil.Error:
            continue
        assert not [name for name, secret in SECRETS.items() if secret in values], process
