"""Pre-train a small network without labels, measure it, and leave a page to look at: python tools/demo.py."""

import argparse
import secrets
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the projects beside the tools
from mmairl.cli.flags import ConfigOptions, seed
from mmairl.config import load_config
from mmairl.engine.run import register
from mmairl.errors import one_sentence_errors
from mmairl.evaluation.protocol import default_device
from projects.demo.page import run_demo


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--config', default='mmairl::demo/mocov2plus_shapes.py')
    parser.add_argument('--seed', type=seed, help='by default another one every time, which is printed')
    parser.add_argument('--work-dir', default='work_dirs/demo')
    parser.add_argument('--cfg-options', nargs='+', action=ConfigOptions, default={}, help='overrides, as k=v')
    return parser.parse_args()


@one_sentence_errors
def main() -> None:
    args = parse_args()
    register()
    cfg = load_config(args.config, args.cfg_options)
    cfg.work_dir = args.work_dir
    seed = secrets.randbelow(2**31) if args.seed is None else args.seed
    page = run_demo(cfg, seed, default_device())
    print(f'the page: {page.resolve()}')


if __name__ == '__main__':
    main()
