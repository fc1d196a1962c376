"""Shortcut for `mmairl train`; see mmairl/cli/train.py."""

from mmairl.cli.train import main

if __name__ == '__main__':
    main()
