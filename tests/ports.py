"""Ports for servers that are to be started anew at the same one, or on all addresses."""

import random
import socket
from pathlib import Path

LOWEST = 10_000
# What the system hands out to whoever asks for any port, as every caller of a server does.
_HANDED_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


HAS_IPV6 = _has_ipv6()


def free_port() -> int:
    """One that nobody has, nor is given by chance before it is used."""
    end = int(_HANDED_OUT.read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(LOWEST, end)
        with socket.socket() as tried:
            try:
                tried.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port
