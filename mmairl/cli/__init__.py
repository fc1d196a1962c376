"""The command line: `mmairl COMMAND`, one module per command.

The modules of commands import neither torch nor OpenMMLab at the top, because that takes seconds and `--help` must be fast.
Their `main` imports other modules after the arguments are parsed.
"""

from mmairl.startup import prepare as prepare
