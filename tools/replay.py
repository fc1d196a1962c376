"""The same as `mmairl replay`."""

import sys

from mmairl.cli.main import main

if __name__ == '__main__':
    main(['replay', *sys.argv[1:]])
