"""Shortcut for `mmairl consolidate`; see mmairl/cli/consolidate.py."""

from mmairl.cli.consolidate import main

if __name__ == '__main__':
    main()
