"""Shortcut for `mmairl convert`; see mmairl/cli/convert.py."""

from mmairl.cli.convert import main

if __name__ == '__main__':
    main()
