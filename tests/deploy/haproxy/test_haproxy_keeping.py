"""Which replicas stay in HAProxy's configuration that Ray Serve does not name, and what is noted of them."""

import json

import pytest

from deploy.haproxy import launcher
from deploy.haproxy.targets import KEPT_S, Backend, Targets, keeping

OLD, NEW = "server old 127.0.0.1:30000 check", "server new 127.0.0.1:30001 check"
HOURS_S = 3 * 3600.0


def targets(*backends):
    return Targets("admin.sock", (), "bind 127.0.0.1:8000", (), backends)


def app(*servers):
    return Backend("app", "", "default-server inter 500ms", list(servers))


def after(*looks):
    """The servers of the application after each of these (seconds, backends that Serve names), one after the other."""
    before = []
    for now_s, backends in looks:
        before = list(keeping(targets(*backends), before, now_s).backends)
    return {each.prefix: each.servers for each in before}


def test_replicas_that_have_served_for_hours_stay_while_serve_builds_their_successors():
    assert after((0, [app(OLD)]), (HOURS_S, [app()])) == {"": [OLD]}
    assert after((0, [app(OLD)]), (HOURS_S, [app()]), (HOURS_S + 30, [app(NEW)])) == {"": [NEW, f"{OLD} backup"]}


def test_they_stay_for_as_long_as_no_build_succeeds():
    assert after((0, [app(OLD)]), (1, [app()]), (HOURS_S, [app()]), (2 * HOURS_S, [app()])) == {"": [OLD]}


def test_the_old_one_is_a_backup_until_the_next_change():
    assert after((0, [app(OLD)]), (1, [app(NEW)]), (2, [app(NEW)])) == {"": [NEW]}


def test_of_an_application_that_is_gone_they_stay_a_while_whatever_else_changes():
    gone = (HOURS_S, [])
    assert after((0, [app(OLD)]), gone, (HOURS_S + KEPT_S - 1, [])) == {"": [OLD]}
    assert after((0, [app(OLD)]), gone, (HOURS_S + KEPT_S - 1, []), (HOURS_S + KEPT_S + 1, [])) == {}


def test_another_application_in_the_same_place_takes_it():
    other = Backend("other", "", "default-server", [NEW])
    assert after((0, [app(OLD)]), (1, [other])) == {"": [NEW]}


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"node": "1 2"}', '[{"name": "app"}]'])
def test_a_note_that_cannot_be_used_is_none(tmp_path, text):
    (tmp_path / launcher.BACKENDS).write_text(text)
    assert launcher.backends_before(tmp_path) == []


def test_what_was_noted_is_read_again(tmp_path):
    (tmp_path / launcher.BACKENDS).write_text(json.dumps([vars(app(OLD))]))
    assert launcher.backends_before(tmp_path) == [app(OLD)]
