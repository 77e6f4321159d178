"""Which replica HAProxy sends a prompt to, by what they say they have room for; the rule in Lua is the one in Python."""

import json
import math
import random
import subprocess

import pytest
from haproxy_calls import ask, count, in_front, up
from haproxy_run import ok
from live_service import wait_until

from deploy.haproxy.haproxy_config import load_rule
from deploy.haproxy.launcher import binary
from deploy.haproxy.route_rule import RoomReport, Server, choose

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # Ray's own

GENERATE = "/v1/completions"


def body(tokens, **fields):
    return json.dumps({"prompt": "x" * (4 * tokens), **fields}).encode()


def says(replica, words):
    replica.room = (200, {}, words.encode()) if words else (404, {}, b"")


def heard(*replicas):
    """Wait until HAProxy has read what they say."""
    told = [replica.rooms_told for replica in replicas]
    assert wait_until(
        lambda: all(r.rooms_told > before + 2 for r, before in zip(replicas, told, strict=True)), 20, 0.05
    )


@pytest.fixture
def pair(folder, replicas):
    """An exact replica with room for 1,000 tokens and a fast one for 2,000, behind HAProxy, which has heard of both."""
    exact, fast = replicas(ok("exact")), replicas(ok("fast"))
    says(exact, "exact 1000 2000 0.0 0.0 0.0 0.000")
    says(fast, "fast 2000 3000 0.0 0.0 0.0 0.000")
    with in_front(folder, app=[exact, fast]) as (_, port):
        up(port)
        # Without reports, requests without a load go to one after the other.
        assert wait_until(
            lambda: [sent(port, body(0), {"x-nestedfp-precision": "exact"}) for _ in range(4)] == ["exact"] * 4, 10
        )
        yield exact, fast, port


def sent(port, content, headers=None):
    status, _, said = ask(port, GENERATE, "POST", content, {"content-type": "application/json", **(headers or {})})
    assert status == 200
    return said.decode()


def test_a_prompt_goes_to_the_exact_replica_while_that_has_room_and_then_to_the_fast_one(pair):
    _, _, port = pair
    took = [sent(port, body(300)) for _ in range(3)]
    assert took[0] == "exact"
    assert sent(port, body(1500)) == "fast", "a longer prompt than the room"
    assert sent(port, body(150_000)) == "fast", "also one that fills more than HAProxy's buffer"


@pytest.mark.parametrize(
    ("rooms", "full", "least_behind"),
    [((100, -400), 2000, "exact"), ((-400, 100), 2000, "fast"), ((100, -400), 100, "fast")],
)
def test_a_prompt_that_nobody_has_room_for_goes_to_the_replica_that_is_least_behind(pair, rooms, full, least_behind):
    exact, fast, port = pair
    says(exact, f"exact {rooms[0]} {full} 0.0 0.0 0.0 0.000")
    says(fast, f"fast {rooms[1]} 3000 0.0 0.0 0.0 0.000")
    heard(exact, fast)
    assert sent(port, body(150)) == least_behind
    assert sent(port, body(150), {"x-nestedfp-precision": "exact"}) == "exact", "pinned: it waits there for its turn"


@pytest.mark.parametrize("headers", [{}, {"x-nestedfp-precision": "fast"}])
def test_a_request_says_its_class_in_its_header_or_its_body(pair, headers):
    _, _, port = pair
    fields = {} if headers else {"precision": "fast"}
    assert [sent(port, body(10, **fields), headers) for _ in range(4)] == ["fast"] * 4
    fields = {} if headers else {"precision": "exact"}
    headers = {"x-nestedfp-precision": "exact"} if headers else {}
    assert [sent(port, body(5000, **fields), headers) for _ in range(4)] == ["exact"] * 4, "it waits there for its turn"


def test_a_prompt_that_quotes_a_precision_asks_for_none(pair):
    _, _, port = pair
    quoted = json.dumps({"prompt": 'say {"precision": "fast"}'}).encode()
    assert sent(port, quoted) == "exact"


def test_a_replica_that_became_fast_gets_no_more_of_them(pair):
    exact, fast, port = pair
    says(exact, "fast 1000 2000 0.0 0.0 0.0 0.000")
    says(fast, "exact 1000 2000 0.0 0.0 0.0 0.000")
    # HAProxy hears of the two one after the other; between that both are fast.
    assert wait_until(lambda: [sent(port, body(1)) for _ in range(5)] == ["fast"] * 5, 30, 0.05)


def test_where_nobody_says_anything_the_least_loaded_one_is_asked(pair):
    exact, fast, port = pair
    says(exact, None)
    says(fast, None)

    def shares():
        before = count(exact, GENERATE), count(fast, GENERATE)
        for _ in range(10):
            sent(port, body(1))
        return count(exact, GENERATE) - before[0], count(fast, GENERATE) - before[1]

    assert wait_until(lambda: shares() == (5, 5), 30), "once HAProxy has heard of both"


def test_under_load_pinned_requests_are_packed_on_as_few_replicas_as_can_take_them(folder, replicas):
    names = ["a", "b", "c"]
    named = {replicas(ok(name)): name for name in names}
    made = sorted(named, key=lambda each: str(each.port))  # as HAProxy has them
    first, second = named[made[0]], named[made[1]]

    def taken(**fields):
        return {sent(port, body(1, **fields)) for _ in range(9)}

    with in_front(folder, app=made) as (_, port):
        up(port)
        for load_share, pinned_shares, tokens, expected in (
            (0.7, (0.1, 0.0, 0.0), 1000, {first}),
            (0.5, (0.1, 0.0, 0.0), 1000, set(names)),
            (0.7, (0.4, 0.2, 0.0), 1000, {first, second}),
            (0.7, (0.4, 0.4, 0.4), 1000, set(names)),
            (0.7, (0.1, 0.0, 0.0), -9000, set(names)),
        ):
            for replica, share in zip(made, pinned_shares, strict=True):
                says(replica, f"fast {tokens} 3000 0.0 {load_share} {share} 0.000")
            heard(*made)
            assert wait_until(lambda expected=expected: taken(precision="exact") == expected, 30)
            assert wait_until(lambda: taken() == set(names), 30), "requests of no precision go to all"
        says(made[0], "fast 1000 3000 0.0 0.7 0.1 0.000")
        says(made[1], "fast 1000 3000 0.0 0.7 0.0 0.000")
        says(made[2], None)
        heard(*made)
        assert wait_until(lambda: taken(precision="exact") == set(names), 30), "one that says nothing is not left out"


def test_requests_of_a_session_meet_again(folder, replicas):
    names = ["a", "b", "c"]
    made = [replicas(ok(name)) for name in names]
    for replica in made:
        says(replica, "fast 1000 2000 0.0 0.0 0.0 0.000")
    with in_front(folder, app=made) as (_, port):
        up(port)
        assert wait_until(lambda: {sent(port, body(1)) for _ in names} == set(names), 30)
        for key in ("one", "two", "three", "four"):
            assert len({sent(port, body(1), {"x-nestedfp-session": key}) for _ in range(5)}) == 1
            assert len({sent(port, body(1, prompt_cache_key=key)) for _ in range(5)}) == 1


def test_the_room_is_for_haproxy_alone(pair):
    _, _, port = pair
    assert ask(port, "/room")[0] == 404


def table(chance):
    """Servers in one state each, and a request."""
    servers = []
    for number in range(chance.randint(0, 6)):
        report = None
        if chance.random() < 0.85:
            report = RoomReport(
                chance.random() < 0.5,
                chance.randint(-500, 2000),
                chance.choice([0, 300, 2000]),
                chance.choice([0.0, 5000.0]),
                chance.choice([9.95, 8.5]),
                chance.choice([0.0, 0.7, 1.4]),
                chance.choice([0.0, 0.1, 0.4, 0.7]),
            )
        recent = [(chance.choice([9.9, 9.94, 9.99]), chance.randint(1, 400)) for _ in range(chance.randint(0, 3))]
        servers.append(
            Server(f"s{number}", chance.randint(0, 5), number if chance.random() < 0.5 else 9 - number, report, recent)
        )
    wanted = chance.choice([None, "auto", "exact", "fast"])
    last = chance.choice([None, "s0", "s3", "gone"])
    return servers, wanted, chance.choice([chance.randint(1, 1500), math.inf]), last


def lua(value):
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return str(value).lower()
    if value == math.inf:
        return "math.huge"
    return json.dumps(value) if isinstance(value, str) else repr(value)


SHOW = """
local function show(...)
    local server = nestedfp.choose(...)
    out:write(server and server.name or "-", "\\n")
end
"""


def as_lua(server):
    report = server.report
    room = "nil"
    if report is not None:
        room = f"exact={lua(report.exact)}, tokens={report.tokens}, full={report.full}, per_s={report.per_s}, at={report.at_s}"
        room = f"{{{room}, load_share={report.load_share}, pinned_share={report.pinned_share}}}"
    recent = ", ".join(f"{{at={at_s}, tokens={tokens}}}" for at_s, tokens in server.sent)
    return f"{{name={lua(server.name)}, open={server.open}, turn={server.turn}, room={room}, sent={{{recent}}}}}"


def test_the_rule_in_lua_is_the_rule_in_python(tmp_path):
    chance = random.Random(7)
    cases = [table(chance) for _ in range(3000)]
    expected = [choose(servers, wanted, tokens, last, 10.0) for servers, wanted, tokens, last in cases]
    calls = []
    for servers, wanted, tokens, last in cases:
        arguments = f"{{{', '.join(map(as_lua, servers))}}}, {lua(wanted)}, {lua(tokens)}, {lua(last)}, 10.0"
        calls.append(f"show({arguments})")
    script = tmp_path / "cases.lua"
    out = tmp_path / "chosen"
    text = f"local out = io.open({lua(str(out))}, 'w')\n" + SHOW
    # A Lua function may be so long and no longer.
    chunks = [calls[at : at + 100] for at in range(0, len(calls), 100)]
    text += "".join("(function()\n" + "\n".join(chunk) + "\nend)()\n" for chunk in chunks) + "out:close()\n"
    script.write_text(text.replace("\n(function", "\n;(function"))
    config = tmp_path / "haproxy.cfg"
    config.write_text(f"global\n    {load_rule()}\n    lua-load {script}\n")
    subprocess.run([binary(), "-c", "-f", str(config)], check=False, capture_output=True, timeout=60)
    assert out.read_text().split() == ["-" if server is None else server.name for server in expected]
    assert len({None if server is None else server.name for server in expected}) > 5


def test_the_length_of_a_prompt_is_told_by_its_body(tmp_path):
    out = tmp_path / "tokens"
    cases = [
        ('{"prompt": "abcd"}', "400", "100"),
        ('{"prompt": [1, 2, 3]}', "600", "100"),
        ('{"prompt": [[1, 2]]}', "600", "100"),
        ('{"prompt": ["1"]}', "400", "100"),
        ("x" * 400, "nil", "100"),
        ("x" * 50_000, "nil", "inf"),  # goes on beyond what HAProxy has read
    ]
    calls = "".join(
        f"out:write(tostring(nestedfp.tokens({lua(body)}, {length})), '\\n')\n" for body, length, _ in cases
    )
    script, config = tmp_path / "cases.lua", tmp_path / "haproxy.cfg"
    script.write_text(f"local out = io.open({lua(str(out))}, 'w')\n{calls}out:close()\n")
    config.write_text(f"global\n    {load_rule()}\n    lua-load {script}\n")
    subprocess.run([binary(), "-c", "-f", str(config)], check=False, capture_output=True, timeout=60)
    assert out.read_text().split() == [tokens for *_, tokens in cases]


def test_a_request_that_the_chosen_replica_sends_elsewhere_is_answered_by_another(folder, replicas):
    exact, fast = replicas(lambda path, headers, body: (425, {}, b"{}")), replicas(ok("fast"))
    with in_front(folder, app=[exact, fast]) as (_, port):
        up(port, "/-/healthz")
        says(exact, "exact 1000 2000 0.0 0.0 0.0 0.000")
        heard(exact)
        assert [sent(port, body(1)) for _ in range(10)] == ["fast"] * 10
        assert count(exact, GENERATE) == 10, "each was offered to it once"
