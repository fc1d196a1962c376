"""The command line: `mmairl COMMAND`, one module per command.

The module of a command imports neither torch nor OpenMMLab at its top, because these imports take seconds and `--help` must be
fast. The function `main` of the module imports them after the arguments are parsed.
"""

from mmairl.signals import prepare as prepare
