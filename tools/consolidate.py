"""The same as `mmairl consolidate`."""

import sys

from mmairl.cli.main import main

if __name__ == '__main__':
    main(['consolidate', *sys.argv[1:]])
