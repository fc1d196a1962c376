"""Measure a frozen backbone: tools/evaluate.py {knn,linear} CONFIG CKPT, or --init {random,pixels} for a baseline."""

import argparse
import dataclasses
import json
from pathlib import Path

from mmengine import DictAction
from rich.console import Console

from mmairl.engine.atomic import replacing
from mmairl.engine.launch import explained, load_config, one_sentence_errors, register
from mmairl.errors import UserError
from mmairl.evaluation.protocol import BASELINES, default_device, evaluate
from mmairl.report.table import terminal_table


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('protocol', choices=['knn', 'linear'])
    parser.add_argument('config')
    parser.add_argument('checkpoint', nargs='?', help='a training checkpoint; or give --init')
    parser.add_argument('--init', choices=BASELINES, help='measure a baseline in place of a checkpoint')
    parser.add_argument('--part', choices=['student', 'teacher'], default='student')
    parser.add_argument('--k', type=int, nargs='+', default=[20, 200], help='numbers of neighbours for knn')
    parser.add_argument('--device', default=default_device())
    parser.add_argument('--workers', type=int, default=0, help='processes that load images')
    parser.add_argument('--out', type=Path, help='JSON to write; by default beside the checkpoint')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, default={}, help='overrides, as k=v')
    return parser.parse_args()


def default_out(args: argparse.Namespace) -> Path:
    if args.init:
        return Path('work_dirs') / Path(args.config).stem / f'{args.init}_{args.protocol}.json'
    checkpoint = Path(args.checkpoint)
    return checkpoint.with_name(f'{checkpoint.stem}_{args.part}_{args.protocol}.json')


@one_sentence_errors
def main() -> None:
    args = parse_args()
    if bool(args.checkpoint) == bool(args.init):
        raise UserError('give either a checkpoint or --init random / --init pixels, not both and not neither')
    register()
    cfg = load_config(args.config, args.cfg_options)
    with explained():
        result = evaluate(
            cfg, args.protocol, args.init or args.checkpoint, args.part, args.k, args.device, args.workers
        )
    record = dict(
        protocol=args.protocol,
        config=args.config,
        checkpoint=args.checkpoint,
        part=args.part,
        **dataclasses.asdict(result),
    )
    out = args.out or default_out(args)
    with replacing(out) as beside:
        beside.write_text(json.dumps(record, indent=2) + '\n')
    Console().print(terminal_table([result], f'top-1 in percent, {Path(args.config).stem}'))
    print(f'written to {out}')


if __name__ == '__main__':
    main()
