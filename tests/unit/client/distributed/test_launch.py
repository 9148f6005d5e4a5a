"""A leader's followers, and what ends whom."""

import os
import signal

from pubswap_client.distributed.launch import die_with_the_leader


def test_a_signal_to_all_processes_is_the_leaders_to_follow() -> None:
    """Followers that ended by it at once would end the leader, while it still writes its step."""
    follower = os.fork()
    if not follower:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_the_leader()
        for name in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), name)
        os._exit(0)
    assert os.waitpid(follower, 0) == (follower, 0)
