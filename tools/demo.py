#!/usr/bin/env python
"""The same as `mmairl demo`."""

import sys

from mmairl.cli.main import main

if __name__ == '__main__':
    main(['demo', *sys.argv[1:]])
