"""The control room of the running service, with keys, in a real Chromium: what an operator sees and does; and the access log."""

import re
import socket
import time

import httpx
import pytest
from browser import BrowserMissing, binary, browser_page
from keyed_service import PORT, SECRETS, URL, client_of
from live_service import ADMIN, KEY, MODEL, complete, wait_until

pytestmark = pytest.mark.serve

USER = SECRETS["user"]


@pytest.fixture
def client(service):
    with client_of("user") as client:
        yield client


@pytest.fixture
def page(service):
    try:
        binary()
    except BrowserMissing as error:
        pytest.skip(str(error))
    with browser_page() as page:
        page.look(1280, 1000)
        yield page


def text(selector):
    return f"document.querySelector({selector!r}).textContent"


def submit(page, form, field, key):
    page.evaluate(
        f"document.querySelector({field!r}).value = {key!r}, document.querySelector({form!r}).requestSubmit()"
    )


def test_the_page_needs_no_key_and_what_it_shows_does(client):
    for path in ("/control", "/control/"):
        answer = httpx.get(URL + path, trust_env=False)
        assert answer.status_code == 200
        assert "script-src 'sha256-" in answer.headers["content-security-policy"]
    assert httpx.get(f"{URL}/control/data", trust_env=False).status_code == 401
    assert client.get("/control/data").status_code == 403


def test_the_data_begin_with_what_was_before_and_go_on_from_there(client):
    with httpx.Client(base_url=URL, timeout=20, trust_env=False, headers=ADMIN) as own:
        answer = own.get("/control/data")
        assert answer.headers["cache-control"] == "no-store"
        whole = answer.json()
        assert len(whole["samples"]) > 3, "from before anybody looked"
        # While a controller starts anew it knows of no replica.
        wait_until(lambda: (own.get("/control/data").json()["status"] or {}).get("replicas"), 20)
        new = wait_until(lambda: own.get(f"/control/data?since={whole['at_s']}").json()["samples"], 10)
        assert new[0]["wall_s"] > whole["at_s"]


def test_an_operator_opens_the_room_with_the_key_and_overrides(page, client):
    page.open(f"{URL}/control")
    page.wait_for("!document.querySelector('#gate').hidden")
    submit(page, "#gate", "#gate-key", USER)
    page.wait_for(f"{text('#gate-said')}.includes('role')")
    submit(page, "#gate", "#gate-key", KEY)
    page.wait_for("!document.querySelector('#room').hidden && document.querySelector('#gate').hidden")

    def mode():
        return httpx.get(f"{URL}/status", headers=ADMIN, trust_env=False).json().get("mode")

    # On a busy machine the policy may change it just now, and the page hears of it with the next event.
    assert wait_until(lambda: page.evaluate(text("#mode")).lower() == mode(), 20)
    assert page.evaluate("document.querySelectorAll('#replicas tr').length") == 2
    complete(client, max_tokens=24)
    page.wait_for("document.querySelectorAll('#chart-precision rect').length > 0")
    page.wait_for(f"{text('#tile-slo-of')}.match(/of [1-9]/)")

    page.evaluate("document.querySelector('#override input[value=fp8]').checked = true")
    submit(page, "#override", "#key", "wrong")
    page.wait_for(f"{text('#said')}.includes('wrong admin key')")
    submit(page, "#override", "#key", "")  # the one that opened the room
    page.wait_for(f"{text('#said')}.includes('2 of 2')")
    page.wait_for(f"{text('#mode')} === 'FP8' && {text('#reason')}.includes('override')")
    assert httpx.get(f"{URL}/status", headers=ADMIN, trust_env=False).json()["override"]["mode"] == "fp8"
    # Not the first of the list: what else the controller notes on a busy machine, a limit of the path, say, stands above it.
    page.wait_for(
        "[...document.querySelectorAll('#decisions li')].some((li) => /FP8.*override/is.test(li.textContent))"
    )
    answer = complete(client, prompt="The wolf said to the lamb", max_tokens=8)
    assert answer["usage"]["precision_tokens"]["completion"] == {"fp16": 0, "fp8": 8}

    page.evaluate("document.querySelector('#override input[value=auto]').checked = true")
    submit(page, "#override", "#key", "")
    page.wait_for(f"!{text('#reason')}.includes('override')")
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    assert KEY not in page.evaluate("document.documentElement.outerHTML")
    assert page.faults == []


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(page, width):
    page.look(width, 900, phone=width < 500)
    page.open(f"{URL}/control")
    page.wait_for("!document.querySelector('#gate').hidden")
    submit(page, "#gate", "#gate-key", KEY)
    page.wait_for("document.querySelectorAll('#replicas tr').length > 0")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    smallest = (
        "Math.min(...[...document.querySelectorAll('main *')].map((e) => parseFloat(getComputedStyle(e).fontSize)))"
    )
    assert page.evaluate(smallest) >= 12
    assert page.faults == []


def test_the_policy_of_the_page_stops_what_is_not_its_own(page):
    page.open(f"{URL}/control")
    page.wait_for("!document.querySelector('#gate').hidden")
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.broken = 1'}))"
    )
    assert page.evaluate("window.broken") is None
    assert wait_until(lambda: page.evaluate("1") and "Content Security Policy" in " ".join(page.faults), 10)


def test_each_request_leaves_one_line_with_its_id_and_no_secret(client, service):
    prompt = "A secret prompt about a dragon"
    good = client.post(
        "/v1/completions",
        json={"model": MODEL, "prompt": prompt, "max_tokens": 6, "stream": True},
        headers={"x-request-id": "mine-1"},
    )
    given = client.post("/v1/completions", json={"model": "no\nsuch", "prompt": prompt})
    denied = httpx.post(f"{URL}/v1/completions", json={}, headers={"x-request-id": "mine-2"}, trust_env=False)
    assert (good.status_code, given.status_code, denied.status_code) == (200, 404, 401)
    assert good.headers["x-request-id"] == "mine-1"
    ids = {"mine-1", "mine-2", given.headers["x-request-id"]}
    assert wait_until(lambda: ids <= service.access_lines.keys(), 10)
    lines = service.access_lines
    line = lines["mine-1"]
    assert (line["key"], line["model"], line["outcome"], line["status"]) == ("user", MODEL, "ok", 200)
    assert line["completion_fp16_tokens"] + line["completion_fp8_tokens"] == 6
    assert 0 < line["ttft_ms"] <= line["total_ms"]
    assert lines[given.headers["x-request-id"]]["model"] == "no\nsuch"
    assert (lines["mine-2"]["outcome"], lines["mine-2"]["key"]) == ("denied", None)
    assert not [path for path in service.access_logs if re.search(f"{USER}|{KEY}|dragon", path.read_text())]


def test_a_request_whose_client_leaves_is_given_up_whatever_its_headers_say(client, service):
    name = f"leaves-{time.time_ns()}"
    headers = {"X-Request-Disconnect-Disabled": "?1", "X-Request-Id": name}
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 900, "ignore_eos": True}
    request = client.build_request("POST", "/v1/completions", json=body, headers=headers)
    lines = [f"POST {request.url.path} HTTP/1.1", *(f"{name}: {value}" for name, value in request.headers.items())]
    with socket.create_connection(("127.0.0.1", PORT)) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + request.read())
        inside = re.compile(r"^nestedfp_open_requests\{.*\} [1-9]", re.MULTILINE)
        assert wait_until(lambda: inside.search(client.get("/metrics").text), 20, 0.02)
    assert wait_until(lambda: service.access_lines.get(name), 10, 0.05)["outcome"] == "left"


def test_the_start_says_what_to_try_next(service):
    said = service.log.read_text()
    assert f"control room  {URL}/control" in said
    assert KEY not in said
