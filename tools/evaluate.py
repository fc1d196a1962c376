"""Shortcut for `mmairl evaluate`; see mmairl/cli/evaluate.py."""

from mmairl.cli.evaluate import main

if __name__ == '__main__':
    main()
