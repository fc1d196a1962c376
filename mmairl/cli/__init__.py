"""The command line: `mmairl COMMAND`, one module per command.

A command's module imports neither torch nor OpenMMLab at its top, so that `--help` and argument errors take no seconds.
`main` imports what the command needs after its arguments are parsed.
"""

from mmairl.startup import prepare as prepare
