"""Shortcut for `mmairl factors`; see mmairl/cli/factors.py."""

from mmairl.cli.factors import main

if __name__ == '__main__':
    main()
