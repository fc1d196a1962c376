#!/usr/bin/env python
"""The same as `mmairl train`."""

import sys

from mmairl.cli.main import main

if __name__ == '__main__':
    main(['train', *sys.argv[1:]])
