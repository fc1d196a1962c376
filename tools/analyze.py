#!/usr/bin/env python
"""The same as `mmairl analyze`."""

import sys

from mmairl.cli.main import main

if __name__ == '__main__':
    main(['analyze', *sys.argv[1:]])
