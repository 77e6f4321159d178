"""Bearer keys: what a file may say, who is let in, quotas on a clock of the test's own, and that no key shows anywhere."""

import hashlib
import json
import logging
import os

import pytest
import yaml
from front_calls import Peers, ask, front

from deploy.access.keys import MOST_KEYS, Keys, Limited, Role, Unauthorized, load
from deploy.config import ConfigError
from deploy.front.context import PathMeter
from deploy.front.replies import Refused
from deploy.haproxy.haproxy_config import ELSEWHERE_STATUS
from nestedfp.vllm_plugin.scheduling.pin import AskedPrecision

SECRETS = {"u": "user-secret-0123456789", "p": "pin-secret-0123456789", "a": "admin-secret-0123456789"}


def digest(key):
    return hashlib.sha256(key.encode()).hexdigest()


def entry(name, secret=None, **fields):
    return {"name": name, "sha256": digest(secret or SECRETS[name]), **fields}


USUAL = [entry("u"), entry("p", role="pin"), entry("a", role="admin")]


def write(path, entries=USUAL):
    path.write_text(yaml.safe_dump({"keys": entries}))
    return path


@pytest.fixture
def keys(tmp_path, clock):
    return Keys(write(tmp_path / "keys.yaml"), clock=clock)


def bearer(name):
    return f"Bearer {SECRETS[name]}"


# -- the file ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "the whole"),
        ({"keys": []}, "keys: "),
        ({"keys": [entry("u"), entry("u", "other")]}, r"name: two keys have the same \(u, u\)"),
        ({"keys": [entry("u"), entry("v", SECRETS["u"])]}, r"sha256: two keys have the same \(u, v\)"),
        ({"keys": [{"name": "u"}]}, "keys.0.sha256"),
        ({"keys": [{"name": "u", "sha256": "the-key-itself"}]}, "expected 64 hexadecimal digits"),
        ({"keys": [{"name": "u", "sha256": digest("")}]}, "an empty key would let everybody in"),
        ({"keys": [{"name": "u", "key": "the-key-itself", "sha256": digest("x")}]}, "keys.0.key"),
        ({"keys": [entry("u", role="root")]}, "keys.0.role"),
        ({"keys": [entry("u", requests_per_minute=0)]}, "keys.0.requests_per_minute"),
        ({"keys": [entry("u", priority="urgent")]}, "keys.0.priority"),
        ({"keys": [entry("p", role="pin", pinned_token_share=0.5)]}, "pinned_token_share needs tokens_per_minute"),
        ({"keys": [entry("u", tokens_per_minute=9, pinned_token_share=0.5)]}, "a user cannot pin"),
        ({"keys": [entry("u", precision="exact")]}, "the key may ask for fast, auto: say which"),
        ({"keys": [entry("u", precisions=["fast"])]}, "would ask for auto, and the key may ask for fast"),
        ({"keys": [entry("u", precisions=[])]}, "keys.0.precisions"),
        ({"keys": [entry("u", precisions=["fp8"])]}, "keys.0.precisions"),
        ({"keys": [entry("a b", "x")]}, "keys.0.name"),
        ({"keys": [entry(f"k{n}", f"s{n}") for n in range(MOST_KEYS + 1)]}, "keys: "),
        ("the-key-itself", "the whole"),
    ],
)
def test_a_wrong_file_is_refused_with_its_fault_and_without_anything_of_a_key(tmp_path, data, message):
    path = tmp_path / "keys.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(ConfigError, match=message) as caught:
        load(path)
    assert "the-key-itself" not in str(caught.value)


def test_a_file_that_is_not_there_or_no_yaml_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("keys: [the-key-itself")
    with pytest.raises(ConfigError, match="not valid YAML") as caught:
        load(tmp_path / "bad.yaml")
    assert "the-key-itself" not in str(caught.value)


def test_a_file_with_a_field_twice_is_refused_without_what_stands_there(tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text("keys:\n  - name: team-a\n    the-key-itself: 1\n    the-key-itself: 2\n")
    with pytest.raises(ConfigError, match=r"keys\.yaml:4: the same name stands in line 3 already") as caught:
        load(path)
    assert "the-key-itself" not in str(caught.value)


@pytest.mark.parametrize("damaged", ["keys: [", "keys: []\nuntil: 2026-02-30\n"])
def test_a_changed_file_is_taken_up_and_a_damaged_one_is_not(tmp_path, clock, caplog, damaged):
    path = write(tmp_path / "keys.yaml")
    keys = Keys(path, clock=clock)
    assert keys.holder(bearer("u")).name == "u"
    write(path, USUAL[1:])
    os.utime(path, ns=(1, 1))
    clock.now_s += 3
    with pytest.raises(Unauthorized):
        keys.holder(bearer("u"))
    path.write_text(damaged)
    os.utime(path, ns=(2, 2))
    clock.now_s += 3
    with caplog.at_level(logging.ERROR):
        assert keys.holder(bearer("p")).name == "p"
    assert "the keys stay as they were" in caplog.text


def test_a_key_that_stays_in_a_changed_file_keeps_what_it_has_used(tmp_path, clock):
    limited = entry("u", requests_per_minute=1)
    path = write(tmp_path / "keys.yaml", [limited])
    keys = Keys(path, clock=clock)
    keys.holder(bearer("u")).enter(pinned=False)
    write(path, [limited, entry("p")])
    os.utime(path, ns=(1, 1))
    clock.now_s += 3
    assert keys.holder(bearer("p")).name == "p"
    with pytest.raises(Limited):
        keys.holder(bearer("u")).enter(pinned=False)


# -- who is let in -----------------------------------------------------------------------------------------------------


def test_without_a_file_everybody_is_let_in():
    assert Keys().holder(None) is None
    assert Keys().holder("Bearer whatever", Role.ADMIN) is None
    assert not Keys().configured


@pytest.mark.parametrize("given", [bearer("u"), bearer("u").lower().replace(SECRETS["u"].lower(), SECRETS["u"])])
def test_a_right_key_is_found_by_its_name(keys, given):
    assert keys.holder(given).name == "u"


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        SECRETS["u"],
        f"Basic {SECRETS['u']}",
        f"Bearer {SECRETS['u']}x",
        "Bearer ÿ\x00",
        f"Bearer {digest(SECRETS['u'])}",
    ],
)
def test_no_key_or_a_wrong_one_is_401(keys, given):
    with pytest.raises(Unauthorized) as caught:
        keys.holder(given)
    assert caught.value.status == 401
    assert (b"www-authenticate", b"Bearer") in caught.value.headers()


@pytest.mark.parametrize(
    ("name", "role", "allowed"),
    [
        ("u", Role.USER, True),
        ("u", Role.PIN, False),
        ("u", Role.ADMIN, False),
        ("p", Role.USER, True),
        ("p", Role.ADMIN, False),
        ("a", Role.PIN, True),
        ("a", Role.ADMIN, True),
    ],
)
def test_a_role_includes_those_before_it_and_a_smaller_one_is_403(keys, name, role, allowed):
    if allowed:
        assert keys.holder(bearer(name), role).name == name
    else:
        with pytest.raises(Refused, match=f"this needs the role {role}") as caught:
            keys.holder(bearer(name), role)
        assert caught.value.status == 403


# -- quotas ------------------------------------------------------------------------------------------------------------


def holder_of(tmp_path, clock, parts=1, **fields):
    return Keys(write(tmp_path / "keys.yaml", [entry("p", **fields)]), lambda: parts, clock).holder(bearer("p"))


def test_requests_beyond_the_quota_wait_for_as_long_as_they_are_told(tmp_path, clock):
    holder = holder_of(tmp_path, clock, requests_per_minute=3)
    for _ in range(3):
        holder.enter(pinned=False)
    with pytest.raises(Limited, match="used up its requests of this minute") as caught:
        holder.enter(pinned=False)
    assert caught.value.status == 429
    assert caught.value.headers() == ((b"retry-after", b"20"),)
    clock.now_s += 19
    with pytest.raises(Limited):
        holder.enter(pinned=False)
    clock.now_s += 1
    holder.enter(pinned=False)


def test_tokens_are_charged_when_they_are_known_and_a_debt_is_waited_for(tmp_path, clock):
    holder = holder_of(tmp_path, clock, tokens_per_minute=600)
    holder.enter(pinned=False)
    holder.leave(1200, pinned=False)
    with pytest.raises(Limited, match="tokens") as caught:
        holder.enter(pinned=False)
    assert 60 < caught.value.retry_after_s <= 61
    clock.now_s += caught.value.retry_after_s
    holder.enter(pinned=False)


def test_pinned_tokens_have_a_share_of_their_own(tmp_path, clock):
    holder = holder_of(tmp_path, clock, role="pin", tokens_per_minute=1000, pinned_token_share=0.1)
    holder.enter(pinned=True)
    holder.leave(100, pinned=True)
    with pytest.raises(Limited, match="tokens of pinned requests"):
        holder.enter(pinned=True)
    holder.enter(pinned=False)


def test_replicas_share_a_quota(tmp_path, clock):
    holder = holder_of(tmp_path, clock, parts=4, requests_per_minute=8)
    holder.enter(pinned=False)
    holder.enter(pinned=False)
    with pytest.raises(Limited):
        holder.enter(pinned=False)


def test_a_quota_smaller_than_the_number_of_replicas_still_lets_requests_in(tmp_path, clock):
    holder = holder_of(tmp_path, clock, parts=10, requests_per_minute=2)
    holder.enter(pinned=False)
    with pytest.raises(Limited):
        holder.enter(pinned=False)


@pytest.mark.parametrize(
    ("fields", "stated", "asked"),
    [
        ({}, None, "auto"),
        ({}, "fast", "fast"),
        ({"role": "pin"}, "exact", "exact"),
        ({"precision": "fast"}, None, "fast"),
        ({"precision": "fast"}, "auto", "auto"),
        ({"precisions": ["exact"], "precision": "fp16"}, None, "exact"),
        ({"precisions": ["fast"], "precision": "fast"}, "auto", None),
        ({"role": "admin", "precisions": ["auto", "fast"]}, "exact", None),
    ],
)
def test_a_key_has_a_precision_of_its_own_and_those_that_it_may_ask_for(tmp_path, clock, fields, stated, asked):
    holder = holder_of(tmp_path, clock, **{"role": "user", **fields})
    stated = stated and AskedPrecision(stated)
    if asked is None:
        with pytest.raises(Refused, match=f"may not ask for precision {stated}") as caught:
            holder.asked(stated)
        assert caught.value.status == 403
    else:
        assert holder.asked(stated) == asked


# -- over HTTP ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "method"), [("/v1/completions", "POST"), ("/v1/models", "GET"), ("/v1/models/m", "GET")]
)
def test_routes_need_a_key_once_keys_are_configured(keys, path, method, caplog):
    with caplog.at_level(logging.DEBUG):
        status, headers, body = ask(front(keys=keys), path, method, headers={"authorization": "Bearer a-wrong-secret"})
    assert status == 401
    assert headers["www-authenticate"] == "Bearer"
    assert json.loads(body)["error"]["type"] == "authentication_error"
    assert "a-wrong-secret" not in caplog.text + body.decode()


def test_a_user_who_pins_is_told_403_and_counted_as_denied(keys):
    meter = PathMeter()
    app = front(keys=keys, meter=meter)
    status, _, body = ask(app, headers={"authorization": bearer("u"), "x-nestedfp-precision": "fp16"})
    assert status == 403
    assert "may not ask for precision exact" in json.loads(body)["error"]["message"]
    ask(app)
    counted = {
        s.labels["outcome"]: s.value
        for family in meter.requests.collect()
        for s in family.samples
        if s.name == "nestedfp_requests_total" and s.value
    }
    assert counted == {"denied": 2}


def test_a_used_up_quota_is_offered_to_another_replica_first(tmp_path, clock):
    keys = Keys(write(tmp_path / "keys.yaml", [entry("u", requests_per_minute=1)]), clock=clock)
    keys.holder(bearer("u")).enter(pinned=False)
    app = front(keys=keys, standing=Peers())
    headers = {"authorization": bearer("u"), "x-nestedfp-attempt": "id-1"}
    assert ask(app, headers=headers)[0] == ELSEWHERE_STATUS
    status, told, _ = ask(app, headers=headers)
    assert (status, told["retry-after"]) == (429, "60")
