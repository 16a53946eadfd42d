"""TCP ports for servers that cannot choose one themselves."""
import socket

_reservations: list[socket.socket] = []


def free_port() -> int:
    """Reserve a port of 127.0.0.1 for a server that sets SO_REUSEADDR, until this process ends."""
    reservation = socket.socket()
    reservation.bind(('127.0.0.1', 0))      # without SO_REUSEADDR, so no other socket has the port
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _reservations.append(reservation)
    return reservation.getsockname()[1]
