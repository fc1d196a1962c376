#!/usr/bin/env python
"""The same as `mmairl evaluate`."""

import sys

from mmairl.cli.main import main

if __name__ == '__main__':
    main(['evaluate', *sys.argv[1:]])
