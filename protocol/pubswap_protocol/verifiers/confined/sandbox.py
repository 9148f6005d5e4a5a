"""Confinement of a process that scores other people's text, by Landlock and seccomp.

Inside it reads Python and its packages, writes in a scratch folder, and has threads. It has no
network, no further processes and no signals to others. What Landlock does not cover, such as the
permissions of files, seccomp refuses.

libseccomp is called by the package pyseccomp. Landlock takes three system calls, made here: its
Python package is a development release.
"""

import ctypes
import errno
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, reduce
from importlib.metadata import entry_points
from importlib.util import find_spec
from operator import or_
from pathlib import Path
from typing import Any

from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.verifiers.plugin import GROUP

KEPT_VARIABLES = ("PATH", "LANG", "LC_", "PYTHON", "OMP_", "OPENBLAS_", "MKL_", "COVERAGE_")

# linux/landlock.h
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_NO_NEW_PRIVS = 38
_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_IOCTL = 1 << 15
_FS_OF_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_TCP, _SCOPES = 0b11, 0b11  # bind and connect; abstract sockets and signals
_TCP_ABI, _SCOPES_ABI = 4, 6

_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_ZONES = ("/usr/share/zoneinfo",)

_REFUSED = (
    # Networks, and other ways to other processes.
    "socket socketpair connect bind listen accept accept4 sendto sendmsg sendmmsg",
    "io_uring_setup io_uring_enter io_uring_register",
    "shmget shmat shmctl msgget msgsnd msgrcv semget semop mq_open mq_unlink",
    "ptrace process_vm_readv process_vm_writev process_madvise kcmp",
    "pidfd_open pidfd_getfd pidfd_send_signal tkill rt_sigqueueinfo rt_tgsigqueueinfo",
    "inotify_init inotify_init1 fanotify_init",
    # Processes and programs.
    "fork vfork execve execveat setsid setpgid setns unshare",
    # Files beyond Landlock: permissions, owners, times, attributes, and ways around paths.
    "chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat",
    "utime utimes utimensat futimesat setxattr lsetxattr fsetxattr setxattrat",
    "removexattr lremovexattr fremovexattr removexattrat",
    "truncate mknod mknodat open_by_handle_at name_to_handle_at",
    # The system.
    "mount umount2 pivot_root chroot move_mount open_tree fsopen fsconfig fsmount fspick",
    "mount_setattr bpf perf_event_open userfaultfd keyctl add_key request_key",
    "init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff",
    "syslog acct quotactl quotactl_fd settimeofday clock_settime clock_adjtime adjtimex",
    "sethostname setdomainname iopl ioperm personality setpriority ioprio_set",
    "sched_setaffinity sched_setscheduler sched_setparam sched_setattr migrate_pages move_pages",
)
_CLONE_THREAD = 0x10000
# They type into a terminal, or send signals to others.
_TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP = 0x5412, 0x541C, 0x8901, 0x8902
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15  # they send signals to others


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What this machine has for a sandbox: Landlock's ABI, 0 if there is none, and seccomp."""

    landlock: int
    seccomp: bool

    @property
    def lacking(self) -> str | None:
        """What lacks, in words; None if it is complete."""
        missing = [] if self.landlock else ["Landlock (Linux 5.13 or later)"]
        missing += [] if self.seccomp else ["seccomp (Linux, and the system's libseccomp)"]
        return " and ".join(missing) or None


@cache
def available() -> Sandbox:
    """What this machine has."""
    if sys.platform != "linux":
        return Sandbox(0, False)
    abi = _libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    return Sandbox(max(0, int(abi)), _seccomp() is not None)


def check_sandbox() -> None:
    """Raises InvalidSettings if it is not complete, as code of other people needs it."""
    if lacking := available().lacking:
        raise InvalidSettings(
            f"This machine has no {lacking}, so a verifier of an installed package would not be "
            "confined. Use another machine. A member that trusts its code with everything that "
            "this user may do can set unconfined_verifiers = true in policy.toml."
        )


def confine(scratch: Path) -> None:
    """Confine this process, which has one thread, for good, as far as the machine can."""
    found = available()
    for name in [*os.environ]:
        if not name.startswith(KEPT_VARIABLES):
            del os.environ[name]
    os.environ |= {"HOME": str(scratch), "TMPDIR": str(scratch)}
    os.chdir(scratch)
    if found.landlock:
        _restrict_files(found.landlock, scratch)
    if found.seccomp:
        _restrict_calls()


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("files", ctypes.c_uint64),
        ("ports", ctypes.c_uint64),
        ("scopes", ctypes.c_uint64),
    )


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def _restrict_files(abi: int, scratch: Path) -> None:
    every = reduce(or_, (bits for least, bits in _FS_OF_ABI.items() if least <= abi))
    rules = _Ruleset(every, _TCP if abi >= _TCP_ABI else 0, _SCOPES if abi >= _SCOPES_ABI else 0)
    size = ctypes.sizeof(_Ruleset) if abi >= _SCOPES_ABI else 16 if abi >= _TCP_ABI else 8
    ruleset = _called(_CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(size), 0)
    reads = _READ | _LIST | _EXECUTE  # the last for shared libraries
    granted = [(path, reads) for path in (*_python(), *_LIBRARIES, *_ZONES)]
    granted += [(path, (_READ | _WRITE) & every) for path in _DEVICES]
    granted += [(str(scratch), every & ~(_EXECUTE | _IOCTL))]
    for path, allowed in granted:
        _grant(ruleset, path, allowed)
    _prctl(_NO_NEW_PRIVS, 1)
    _called(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _grant(ruleset: int, path: str, allowed: int) -> None:
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not Path(path).is_dir():
            allowed &= ~_LIST
        if allowed:
            rule = _Beneath(allowed, folder)
            _called(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(folder)


def _python() -> Iterator[str]:
    """The folders of Python and of what it has imported, or may import for a plug-in."""
    yield from {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    yield str(Path(os.__file__).parent)
    # A package from a working tree: its own folder, and not what lies beside it. To look for it
    # now fills the caches of Python's finders, which cannot look any more when it is imported.
    for point in entry_points(group=GROUP):
        # What it needs may be installed beside it, out of Python's own folders.
        if point.dist is not None and str(folder := point.dist.locate_file("")) in sys.path:
            yield str(folder)
    roots = {name.partition(".")[0] for name in [*sys.modules]}
    roots |= {point.module.partition(".")[0] for point in entry_points(group=GROUP)}
    for root in roots:
        yield from _folders(root)


def _folders(root: str) -> Iterable[str]:
    try:
        spec = find_spec(root)
    except (ImportError, ValueError):  # such as __main__
        return ()
    if spec is None:
        return ()
    if spec.submodule_search_locations is not None:
        return [*spec.submodule_search_locations]
    return [spec.origin] if spec.has_location and spec.origin else ()


def _called(number: int, *arguments: Any) -> int:
    returned = int(_libc().syscall(number, *arguments))
    if returned < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"system call {number}: {os.strerror(code)}")
    return returned


def _prctl(option: int, value: int) -> None:
    if _libc().prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _seccomp() -> Any:
    """The package pyseccomp; None if it or the system's library is not installed."""
    try:
        import pyseccomp
    except (ImportError, OSError, RuntimeError):
        return None
    return pyseccomp


def _restrict_calls() -> None:
    seccomp = _seccomp()
    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    denied, absent = seccomp.ERRNO(errno.EPERM), seccomp.ERRNO(errno.ENOSYS)
    arg, own = seccomp.Arg, os.getpid()

    def add(action: int, name: str, *arguments: Any) -> None:
        try:
            rules.add_rule(action, name, *arguments)
        except (OSError, ValueError):  # a call that this library or processor does not know
            return

    for name in " ".join(_REFUSED).split():
        add(denied, name)
    add(denied, "clone", arg(0, seccomp.MASKED_EQ, _CLONE_THREAD, 0))
    add(absent, "clone3")  # its flags are in memory; libc then takes clone
    for name in ("kill", "tgkill"):
        add(denied, name, arg(0, seccomp.NE, own))
    for command in (_TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP):
        add(denied, "ioctl", arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF, command))
    for command in (_F_SETOWN, _F_SETSIG, _F_SETOWN_EX):
        add(denied, "fcntl", arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF, command))
    add(denied, "prlimit64", arg(0, seccomp.NE, 0))
    rules.load()
