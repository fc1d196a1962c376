"""Shortcut for `mmairl report`; see mmairl/cli/report.py."""

from mmairl.cli.report import main

if __name__ == '__main__':
    main()
