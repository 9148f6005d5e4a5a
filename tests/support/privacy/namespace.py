"""A network namespace whose processes have one way out, and whose every sent packet is seen."""

import contextlib
import ctypes
import ipaddress
import itertools
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants

_NETWORK = 0x40000000  # CLONE_NEWNET
_EVERYTHING, _IPV4, _ARP, _IPV6 = 0x0003, 0x0800, 0x0806, 0x86DD
_SOL_PACKET, _STATISTICS = 263, 6
_BUFFER = 64 << 20
_NUMBERS = itertools.count()


class Network:
    """A namespace joined to ours by one pair of interfaces, which is its default route.

    `sent` counts the packets that its processes sent, on any interface, by (kind, address, port).
    """

    def __init__(self, name: str, host: str, address: str) -> None:
        """`host` is our end's address, `address` its own."""
        self.name = name
        self.host = host
        self.address = address
        self.sent: Counter[tuple[str, str, int]] = Counter()
        self.lost = 0
        self._over = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Network":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        """Count packets, in a thread of its own that stays in the namespace."""
        enter(self.name)
        everything = socket.htons(_EVERYTHING)
        with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, everything) as raw:
            raw.setsockopt(socket.SOL_SOCKET, 33, _BUFFER)  # SO_RCVBUFFORCE
            raw.settimeout(0.1)
            self._ready.set()
            while True:
                # Ends when the block is over and nothing is left to read.
                with contextlib.suppress(TimeoutError):
                    packet, (_, protocol, kind, *_) = raw.recvfrom(128)
                    if kind == socket.PACKET_OUTGOING:
                        self.sent[_destination(protocol, packet)] += 1
                    continue
                if self._over.is_set():
                    break
            _, self.lost = struct.unpack("II", raw.getsockopt(_SOL_PACKET, _STATISTICS, 8))


def _destination(protocol: int, packet: bytes) -> tuple[str, str, int]:
    if protocol == _IPV4:
        transport = {socket.IPPROTO_TCP: "TCP", socket.IPPROTO_UDP: "UDP"}.get(packet[9])
        begin = (packet[0] & 15) * 4
        port = int.from_bytes(packet[begin + 2 : begin + 4], "big") if transport else 0
        return transport or f"IP {packet[9]}", socket.inet_ntoa(packet[16:20]), port
    if protocol == _ARP:
        return "ARP", socket.inet_ntoa(packet[24:28]), 0
    if protocol == _IPV6:
        return "IPv6", socket.inet_ntop(socket.AF_INET6, packet[24:40]), 0
    return f"{protocol:#x}", "", 0


def enter(name: str) -> None:
    """Move the calling thread, and those it starts, into a namespace."""
    with Path(f"/var/run/netns/{name}").open("rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NETWORK):
            raise OSError(ctypes.get_errno(), "setns")


def install(name: str) -> None:
    """Put a forked process into a namespace, and let it ask the hub for models like a user's."""
    constants: Any = huggingface_hub.constants
    constants.HF_HUB_OFFLINE = False
    enter(name)


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """A namespace until the end of the block. Only root may make one."""
    # From the range for benchmarks (RFC 2544); other test processes take other addresses.
    number = next(_NUMBERS)
    block = (8 * os.getpid() + number) % (1 << 15)
    host, address = (str(ipaddress.ip_address("198.18.0.0") + 4 * block + end) for end in (1, 2))
    name = f"pubswap-{os.getpid()}-{number}"
    outer, inner = f"ps{os.getpid()}-{number}", f"pi{os.getpid()}-{number}"
    _ip("netns", "add", name)
    try:
        # Without IPv6 the kernel sends no neighbour solicitations and the like of its own.
        for setting in ("all", "default"):
            path = f"/proc/sys/net/ipv6/conf/{setting}/disable_ipv6"
            command = f"[ ! -e {path} ] || echo 1 > {path}"
            _ip("netns", "exec", name, "sh", "-c", command)
        _ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
        _ip("address", "add", f"{host}/30", "dev", outer)
        _ip("link", "set", outer, "up")
        for command in (
            "link set lo up",
            f"address add {address}/30 dev {inner}",
            f"link set {inner} up",
            f"route add default via {host}",
        ):
            _ip("-n", name, *command.split())
        with Network(name, host, address) as created:
            yield created
    finally:
        # Its own interfaces go with it once its last process has ended.
        subprocess.run(["ip", "link", "delete", outer], capture_output=True)
        _ip("netns", "delete", name)


@contextlib.contextmanager
def without_network() -> Iterator[str]:
    """The name of a namespace from which nothing can be reached, not even this machine."""
    name = f"pubswap-{os.getpid()}-{next(_NUMBERS)}"
    _ip("netns", "add", name)
    try:
        _ip("-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        _ip("netns", "delete", name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def missing() -> str | None:
    """Why no namespace can be made here, or None if it can."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        return "there is no ip command"
    try:
        with network():
            return None
    except (subprocess.CalledProcessError, OSError):
        return "only root may make a network namespace"
