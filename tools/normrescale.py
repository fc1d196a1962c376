"""Shortcut for `mmairl normrescale`; see mmairl/cli/normrescale.py."""

from mmairl.cli.normrescale import main

if __name__ == '__main__':
    main()
