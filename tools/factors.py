"""The same as `mmairl factors`."""

import sys

from mmairl.cli.main import main

if __name__ == '__main__':
    main(['factors', *sys.argv[1:]])
