"""How a study that is killed stops its runs."""

import subprocess
from collections.abc import Sequence
from functools import cache

SETPRIV = ('setpriv', '--pdeathsig', 'TERM', '--')


def ending_with_parent(command: Sequence[str]) -> list[str]:
    """The command, to be sent SIGTERM by the kernel when the process that starts it ends, however it ends: it saves and leaves.

    A study that is killed cannot signal its runs, which are in sessions of their own. Where there is no setpriv, of util-linux
    2.33 or later, the run goes on to its end, and its lock keeps others off it.
    """
    return [*(SETPRIV if _has_setpriv() else ()), *command]


@cache
def _has_setpriv() -> bool:
    try:
        return subprocess.run([*SETPRIV, 'true'], capture_output=True, check=False).returncode == 0
    except OSError:
        return False
