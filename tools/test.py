#!/usr/bin/env python
"""Evaluate a checkpoint with OpenMMLab's command line: tools/test.py CONFIG CHECKPOINT [--protocol NAME] [arguments].

This command calls `mmairl evaluate PROTOCOL CONFIG CHECKPOINT [arguments]`. Without --protocol, the protocol is that of
`evaluation.settings` in the config if these settings are for exactly one protocol, otherwise knn.
"""

import argparse
import sys

from mmairl.cli.main import main


def words(arguments: list[str]) -> list[str]:
    """Return the arguments to pass to `mmairl evaluate`."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    parser.add_argument('config')
    parser.add_argument('checkpoint')
    parser.add_argument('--protocol')
    args, others = parser.parse_known_args(arguments)
    return [args.protocol or protocol_of(args.config), args.config, args.checkpoint, *others]


def protocol_of(config: str) -> str:
    from mmairl.config import load_config
    from mmairl.errors import UserError

    try:
        settings = load_config(config).get('evaluation', {}).get('settings', {})
    except UserError:
        return 'knn'  # `mmairl evaluate` loads the config again and reports the error
    return next(iter(settings)) if len(settings) == 1 else 'knn'


if __name__ == '__main__':
    asks_help = {'-h', '--help'} & set(sys.argv)
    main(['evaluate', *(['--help'] if asks_help else words(sys.argv[1:]))])
