"""HAProxy's statistics as the controller's status shows them."""

import asyncio
import contextlib

import pytest

from deploy.haproxy import proxy_stats

TABLE = """# pxname,svname,qcur,qmax,scur,smax
http_frontend,FRONTEND,,,7,9
engine,replica-1,2,3,4,5
engine,BACKEND,2,3,4,5
control,BACKEND,0,0,1,1
"""


def test_the_backends_are_added_up_and_their_servers_not_counted_twice():
    stats = proxy_stats.count(TABLE)
    assert (stats.sessions, stats.queued) == (5, 2)


def test_another_answer_is_refused():
    with pytest.raises(ValueError, match="columns svname, scur and qcur"):
        proxy_stats.count("# name,value\na,1\n")


def test_the_socket_of_every_haproxy_is_asked(tmp_path, monkeypatch):
    async def answer(reader, writer):
        assert await reader.readline() == b"show stat\n"
        writer.write(TABLE.encode())
        writer.close()

    async def scenario():
        async with contextlib.AsyncExitStack() as stack:
            for node in ("a", "b"):
                (tmp_path / node).mkdir()
                server = await asyncio.start_unix_server(answer, str(tmp_path / node / "admin.sock"))
                await stack.enter_async_context(server)
            return await proxy_stats.probe()

    monkeypatch.setenv(proxy_stats.SOCKET_ENV, str(tmp_path / "admin.sock"))
    stats = asyncio.run(scenario())
    assert (stats.sessions, stats.queued) == (10, 4)


def test_without_haproxy_there_is_nothing_to_say(tmp_path, monkeypatch):
    monkeypatch.delenv(proxy_stats.SOCKET_ENV, raising=False)
    assert asyncio.run(proxy_stats.probe()) is None
    monkeypatch.setenv(proxy_stats.SOCKET_ENV, str(tmp_path / "admin.sock"))
    assert asyncio.run(proxy_stats.probe()) is None
