#!/usr/bin/env python
"""The same as `mmairl convert`."""

import sys

from mmairl.cli.main import main

if __name__ == '__main__':
    main(['convert', *sys.argv[1:]])
