"""A researcher's own strategy, rule, advantage or other named value, in one file.

It is for simulations alone: no coordinator and no daemon loads foreign code.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from pubswap_protocol.digests import sha256_of
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.methods.registry import PLUGIN
from pubswap_protocol.verifiers.registry import VERIFIERS


def load_plugin(path: Path) -> str:
    """Import a file whose classes register themselves, once as it is; returns its digest.

    A changed file's classes replace those of the same names. Raises InvalidSettings with what
    failed.
    """
    try:
        digest = sha256_of(path)
    except OSError as error:
        raise InvalidSettings(f"{path} cannot be read: {error.strerror}") from None
    name = f"{PLUGIN}{digest[:16]}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidSettings(f"{path} is not a Python file: its name must end in .py.")
    if name in sys.modules:
        return digest
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # any: it is foreign code
        del sys.modules[name]
        raise InvalidSettings(f"{path} failed: {type(error).__name__}: {error}") from error
    if any(cls.__module__ == name for cls in VERIFIERS):  # its processes import no plugins
        raise InvalidSettings(f"{path}: a verifier comes from a package; see docs/verifiers.md.")
    return digest
