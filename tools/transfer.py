#!/usr/bin/env python
"""The same as `mmairl transfer`."""

import sys

from mmairl.cli.main import main

if __name__ == '__main__':
    main(['transfer', *sys.argv[1:]])
