"""Shortcut for `mmairl analyze`; see mmairl/cli/analyze.py."""

from mmairl.cli.analyze import main

if __name__ == '__main__':
    main()
