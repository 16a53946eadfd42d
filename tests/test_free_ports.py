"""A port that a test reserves stays free for the test's server."""
import socket

from support.runner.free_ports import free_port


def test_a_server_may_listen_on_a_reserved_port():
    port = free_port()
    for _ in range(2):
        with socket.create_server(('127.0.0.1', port)), socket.create_connection(('127.0.0.1', port), timeout=60):
            pass
    with socket.create_server(('', port)), socket.create_connection(('127.0.0.1', port), timeout=60):
        pass


def test_no_other_socket_gets_a_reserved_port():
    reserved = {free_port() for _ in range(50)}
    assert len(reserved) == 50
    others = []
    for _ in range(500):
        others.append(socket.socket())
        others[-1].bind(('127.0.0.1', 0))
    assert reserved.isdisjoint(other.getsockname()[1] for other in others)
    for other in others:
        other.close()
