"""Pre-train a small model without labels, evaluate it, and write a page about it. This takes minutes on a CPU."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from mmairl.cli.flags import add_config_options, parser_of, seed


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of('demo', __doc__)
    parser.add_argument(
        '--config',
        default='mmairl::demo/mocov2plus_shapes.py',
        help='train with this config (default: mmairl::demo/mocov2plus_shapes.py)',
    )
    parser.add_argument(
        '--seed', type=seed, help='set the seed (default: a random seed, which is printed)'
    )
    parser.add_argument(
        '--work-dir', default='work_dirs/demo', help='write here (default: work_dirs/demo)'
    )
    add_config_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    args = parse(arguments)

    # These imports come after the parsing of arguments, because importing torch and OpenMMLab takes seconds.
    import secrets

    from mmairl.cli.train import next_commands
    from mmairl.config import load_config
    from mmairl.engine.run import register
    from mmairl.evaluation.protocol import default_device
    from mmairl.report.demo_page import run_demo

    register()
    cfg = load_config(args.config, args.cfg_options)
    cfg.work_dir = args.work_dir
    seed = secrets.randbelow(2**31) if args.seed is None else args.seed
    page = run_demo(cfg, seed, default_device())
    print(f'the page: {page.resolve()}')
    print(*next_commands(Path(cfg.work_dir), args.config), sep='\n')
