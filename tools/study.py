#!/usr/bin/env python
"""The same as `mmairl study`."""

import sys

from mmairl.cli.main import main

if __name__ == '__main__':
    main(['study', *sys.argv[1:]])
