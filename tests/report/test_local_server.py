"""A server for one person: nothing without its token, and every error is a line."""

import http.client
import json
import socket

import pytest

from gristmill.core.errors import UsageError
from gristmill.report.local_server import LocalServer, Reply


class Shelf(LocalServer):
    def answer(self, name, words, reply):
        if name == "page":
            reply.send_page("<p>größe</p>")
        elif name == "broken":
            raise UsageError("it broke")
        else:
            reply.send_json({"name": name, "rows": int(words["rows"])})


@pytest.fixture
def server():
    shelf = Shelf()
    shelf.start()
    yield shelf
    shelf.close()


def ask(server, path, *, method="GET", host="127.0.0.1"):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(method, path, headers={"Host": f"{host}:{server.port}"})
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


def test_answers(server):
    assert ask(server, f"/{server.token}/page") == (200, "<p>größe</p>")
    status, body = ask(server, f"/{server.token}/a/b?rows=1&rows=2")
    assert (status, json.loads(body)) == (200, {"name": "a/b", "rows": 2})
    assert server.url.endswith(f":{server.port}/{server.token}/")


@pytest.mark.parametrize("query", ["", "?rows=many"])
def test_a_bad_request_is_told(server, query):
    status, body = ask(server, f"/{server.token}/a{query}")
    assert status == 400
    assert "bad request" in json.loads(body)["error"]


def test_an_error_of_ours_is_told_in_its_words(server):
    assert ask(server, f"/{server.token}/broken") == (400, '{"error":"it broke"}')


def test_a_half_open_connection_is_closed(server, monkeypatch, capfd):
    monkeypatch.setattr(Reply, "timeout", 0.05)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(f"GET /{server.token}/page HTTP/1.1\r\nHost: 127".encode())
        assert connection.recv(100) == b""  # the server has closed it
    assert ask(server, f"/{server.token}/a?rows=1")[0] == 200
    assert capfd.readouterr().err == ""


def test_nothing_without_the_token_from_elsewhere_or_by_another_method(server):
    assert ask(server, "/page")[0] == 403
    assert ask(server, f"/{server.token}x/page")[0] == 403
    assert ask(server, f"/{server.token}/page", host="evil.example")[0] == 403
    assert ask(server, f"/{server.token}/page", method="POST")[0] == 501


def test_a_port_in_use_is_named(server):
    with pytest.raises(UsageError, match=f"port {server.port}"):
        Shelf(server.port)
