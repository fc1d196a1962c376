"""The command line: `mmairl COMMAND`, one module per command.

The module of a command imports neither torch nor OpenMMLab at its top, because these imports take seconds and `--help` must be
fast. Its function imports them after the arguments are parsed.
"""
