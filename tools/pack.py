"""Shortcut for `mmairl pack`; see mmairl/cli/pack.py."""

from mmairl.cli.pack import main

if __name__ == '__main__':
    main()
