"""Addresses of a coordinator: on IPv6, and behind a load balancer that terminates TLS."""

import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from pubswap_client.coordinator.client import CoordinatorClient, wait_until_ready
from pubswap_client.coordinator.retry import ONCE, Backoff
from pubswap_client.operator.connecting import operator_token
from pubswap_client.state.membership import load_membership
from pubswap_protocol.messages import CreateInvite
from pubswap_protocol.tensors.adapter import encode_adapter
from support.coordinator.certificates import Authority
from support.coordinator.coordinator import begun, serving, settings_for
from support.coordinator.nginx import nginx
from support.coordinator.processes import Coordinator, create_run
from support.eventually import until
from support.forked import ForkedProcesses, pubswap


def free_port_of_ipv6() -> int:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as probe:
            return int(probe.getsockname()[1])
    except OSError:
        pytest.skip("this machine has no IPv6")


def test_a_coordinator_serves_on_ipv6(tmp_path: Path) -> None:
    """It prints its address in brackets, and a member enrols and sends requests there."""
    url = f"http://[::1]:{free_port_of_ipv6()}"
    options = ["--host", "::1", "--port", url.rsplit(":", 1)[-1], "--data-dir", str(tmp_path / "c")]
    with ForkedProcesses(tmp_path / "logs") as processes:
        processes.start("coordinator", ["serve", *options])
        with CoordinatorClient(url, backoff=Backoff(tries=1)) as probe:
            wait_until_ready(probe, 60, processes.check)
        until(lambda: f"on {url}," in (tmp_path / "logs" / "coordinator.log").read_text())
        token = operator_token(tmp_path / "c" / "operator-token")
        with CoordinatorClient(url, token, ONCE) as api:
            run = create_run(Coordinator(processes, api, tmp_path), {"clients": 1})
            invite = api.invite(run.id, CreateInvite(name="a")).invite
        enrolling = ["client", "enroll", "--coordinator", url, "--invite", invite]
        ended: subprocess.CompletedProcess[str] = pubswap(
            *enrolling, "--state", str(tmp_path / "a")
        )
        assert ended.returncode == 0, ended.stderr
        stored = load_membership(tmp_path / "a")
        assert stored.coordinator == url
        with CoordinatorClient(url, stored.membership.token, ONCE) as member:
            assert member.run(run.id).id == run.id


def test_a_member_without_a_certificate_comes_through_a_load_balancer(tmp_path: Path) -> None:
    """One-sided TLS ends before the coordinator, so a member needs only the CA."""
    authority = Authority(tmp_path / "ca", "the operator's CA")
    served = authority.issue("localhost")
    tls = tmp_path / "tls"
    tls.mkdir()
    shutil.copy(served.certificate, tls / "server.pem")
    shutil.copy(served.key, tls / "server.key")
    with serving(settings_for(tmp_path / "data")) as server, server.closing:
        fed = begun(server, method="fedavg", clients=1)
        upstream = server.url.removeprefix("http://")
        with (
            nginx(tmp_path / "nginx", upstream, tls) as url,
            CoordinatorClient(url, fed.tokens["a"], ONCE, tls=authority.files()) as api,
        ):
            assert api.task(fed.run.id, 5).round == 1
            data = encode_adapter(fed.run.model.layout, fed.adapter(1))
            assert api.blob(fed.run.id, api.put_blob(fed.run.id, data)) == data
