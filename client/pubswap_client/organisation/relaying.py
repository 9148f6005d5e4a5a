"""`pubswap relay`: requests of machines without a network, forwarded by one that has one."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pubswap_client.coordinator.tls import from_environment
from pubswap_client.daemon.signals import until_stopped
from pubswap_client.operator.connecting import CaFile, Url
from pubswap_protocol.command_line.locking import Held
from pubswap_protocol.command_line.logs import log_to
from pubswap_protocol.errors import StateInUse


def relay(
    folder: Annotated[Path, typer.Argument(help="The folder that the other machines see, too.")],
    coordinator: Url,
    ca_file: CaFile = None,
    once: Annotated[
        bool, typer.Option("--once", help="End when nothing is asked any more, for cron.")
    ] = False,
) -> None:
    """Forward to one coordinator what daemons without a network ask, through a shared folder.

    Start it on a login or transfer node, and the daemons with PUBSWAP_RELAY=FOLDER in their
    environment. Every command of a member works so. The folder is for its owner only and holds no
    secret but the tokens of requests that are under way. Stop or kill it at any time: requests
    wait for the next one. With --once and another relay at work, it ends at once.

    It goes through a proxy as every command does (HTTPS_PROXY), and shows the client certificate of
    PUBSWAP_CLIENT_CERT_FILE and PUBSWAP_CLIENT_KEY_FILE.
    """
    from pubswap_client.coordinator.relay import Relay

    tls = from_environment(ca_file)
    log_to(sys.stderr, "console")
    with until_stopped():
        try:
            Relay(folder, coordinator, tls).run(once)
        except Held as other:
            if not once:
                raise StateInUse(f"{folder} has a relay, process {other}.") from None
