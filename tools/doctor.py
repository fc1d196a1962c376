"""The same as `mmairl doctor`."""

import sys

from mmairl.cli.main import main

if __name__ == '__main__':
    main(['doctor', *sys.argv[1:]])
