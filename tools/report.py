#!/usr/bin/env python
"""The same as `mmairl report`."""

import sys

from mmairl.cli.main import main

if __name__ == '__main__':
    main(['report', *sys.argv[1:]])
