#!/usr/bin/env python
"""The same as `mmairl embed`."""

import sys

from mmairl.cli.main import main

if __name__ == '__main__':
    main(['embed', *sys.argv[1:]])
