"""Shortcut for `mmairl transfer`; see mmairl/cli/transfer.py."""

from mmairl.cli.transfer import main

if __name__ == '__main__':
    main()
