#!/usr/bin/env python
"""The same as `mmairl pack`."""

import sys

from mmairl.cli.main import main

if __name__ == '__main__':
    main(['pack', *sys.argv[1:]])
