"""Where values may go that memory is short for: what users say by `offload=`, checked."""

from __future__ import annotations

import os
from typing import Any

from ostinato.errors import ArgumentError
from ostinato.ops.core.device import described
from ostinato.ops.core.user_line import misfit
from ostinato.planner.passes.offload import DEFAULT, DISK, HOST, OFF, ON


def check_offload(who: str, given: Any) -> str:
    """Return it as a target has it, where it may be so already."""
    if given is None:
        return DEFAULT
    if given in (DEFAULT, OFF, ON):
        return str(given)
    if isinstance(given, bool):
        return ON if given else OFF
    if isinstance(given, os.PathLike):
        return os.path.abspath(given)
    if given in (HOST, DISK):
        return str(given)
    if isinstance(given, str) and os.sep in given:
        return os.path.abspath(os.path.expanduser(given))
    needed = '"host", "disk", a folder such as "/scratch", True or False'
    do = f'write offload="./{given}" for a folder here' if isinstance(given, str) else ""
    raise misfit(ArgumentError, who, got=f"offload={given!r}", needed=needed, do=do)


def fitting_offload(who: str, given: str, device: str) -> str:
    """Return what was said, if the device can do that: from a GPU to the host, from the host to a disk."""
    is_host = described(device).is_host
    if given in (DEFAULT, OFF, ON) or is_host == (given != HOST):
        return given
    needed = '"disk" or a folder, as its memory is the host\'s' if is_host else '"host"'
    do = "write offload=True for what the device has"
    raise misfit(ArgumentError, who, got=f"offload={given!r} on {device!r}", needed=needed, do=do)
