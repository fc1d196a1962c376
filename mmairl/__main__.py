"""`python -m mmairl COMMAND`, the same as `mmairl COMMAND`."""

from mmairl.cli.main import main

if __name__ == '__main__':
    main()
