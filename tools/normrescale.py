#!/usr/bin/env python
"""The same as `mmairl normrescale`."""

import sys

from mmairl.cli.main import main

if __name__ == '__main__':
    main(['normrescale', *sys.argv[1:]])
