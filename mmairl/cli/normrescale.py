"""Rescale a LARS-trained backbone to the weight norms of an anchor: mmairl normrescale LARS_CKPT OUT --anchor CKPT.

This is Eq. 3 of Huang et al. 2022. The anchor is a checkpoint of the same network that was trained by SGD, such as
torchvision:resnet50.

With --advise, report whether the norms have grown, predict a learning rate for fine-tuning, and print a recommendation:
mmairl normrescale CKPT --advise [--anchor CKPT].
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmairl.cli.flags import above_zero, add_part, add_prefix, add_switch, parser_of
from mmairl.errors import UserError

if TYPE_CHECKING:
    from mmairl.checkpoints.normrescale import TensorChange
    from mmairl.checkpoints.read import Backbone

PER = ('tensor', 'channel')
STATISTICS = ('keep', 'rescale')
# Entries of a checkpoint's `meta` that describe its weights. They are copied to the rescaled checkpoint.
KEPT_META = ('cfg', 'settings', 'epoch', 'iter', 'dataset_meta', 'mmairl_version')
# The printed recommendation. The key states whether the network looks LARS-trained.
ADVICE = {
    True: 'recommendation: rescale the network by an anchor (without --exact) and keep the learning rate of your recipe, or '
    'try learning rates {rates}',
    False: 'recommendation: the network does not look LARS-trained; if your recipe is for networks trained by SGD with weight '
    'decay and this network was trained differently, compare two options on held-out images: NormRescale with an '
    'SGD-trained anchor, or learning rates {rates}',
}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of('normrescale', __doc__)
    parser.add_argument(
        'lars', metavar='LARS_CKPT', help='rescale this checkpoint in any known format'
    )
    parser.add_argument(
        'out',
        nargs='?',
        metavar='OUT',
        help='write the rescaled checkpoint to this file, and a table and a figure next to it; required without --advise',
    )
    norms = parser.add_mutually_exclusive_group()
    norms.add_argument(
        '--anchor',
        metavar='CKPT',
        help='rescale to the norms of this checkpoint, or of torchvision:NAME; required without --constant and --advise '
        '(default: none)',
    )
    norms.add_argument(
        '--constant',
        type=above_zero,
        metavar='FACTOR',
        help='multiply all weights by FACTOR instead of using an anchor; Huang et al. 2022 use 0.1 (default: none)',
    )
    add_part(parser)
    add_part(parser, '--anchor-part', "the anchor's checkpoint")
    add_prefix(parser)
    add_prefix(parser, '--anchor-prefix', "the anchor's file")
    parser.add_argument(
        '--per',
        choices=PER,
        default='tensor',
        help='match the norm of each weight tensor or of each output channel (default: tensor)',
    )
    parser.add_argument(
        '--statistics',
        choices=STATISTICS,
        default='keep',
        help="keep batch norm's running statistics, or rescale them as in the release of Huang et al. 2022 (default: keep)",
    )
    add_switch(
        parser,
        '--exact',
        'rescale only weights whose scale is canceled by a batch norm, so that the features stay the same (default: off)',
    )
    add_switch(parser, '--advise', 'write nothing and print a recommendation (default: off)')
    parser.add_argument(
        '--rate',
        type=above_zero,
        default=0.01,
        help='--advise: set the learning rate of your fine-tuning recipe (default: 0.01)',
    )
    add_switch(parser, '--strict', 'fail if a tensor cannot be rescaled (default: log a warning)')
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    args = parse(arguments)
    if args.advise:
        if args.out or args.constant:
            raise UserError(
                '--advise: cannot be combined with OUT or --constant, because it writes nothing; leave both out',
                code='advise',
            )
        advise(args)
        return
    if not args.out or not (args.anchor or args.constant):
        raise UserError(
            'normrescale: requires OUT, and --anchor or --constant; give them, or --advise for a recommendation only',
            code='no-anchor',
        )
    rescale(args)


def rescale(args: argparse.Namespace) -> None:
    """Write the rescaled checkpoint, a table and a figure."""
    # These imports come after the parsing of arguments, because importing torch and OpenMMLab takes seconds.
    from mmengine.logging import print_log

    from mmairl.checkpoints.normrescale import WHOLE_NUMBERS, left_alone, normrescale
    from mmairl.checkpoints.norms import looks_lars_trained, typical_growth
    from mmairl.checkpoints.read import read_backbone
    from mmairl.io import output
    from mmairl.report.table import print_table

    output(args.out, args.lars, args.anchor)
    source = read_backbone(args.lars, args.part, args.prefix)
    if 'normrescale' in source.origin and args.constant:
        raise UserError(
            f'{args.lars}: this checkpoint is already rescaled ({source.origin["normrescale"]}); rescale the original '
            'checkpoint',
            code='rescaled-twice',
        )
    anchor = None
    if args.constant is None:
        anchor = read_backbone(args.anchor, args.anchor_part, args.anchor_prefix)
    targets = anchor.weights if anchor else None
    weights, rows = normrescale(
        source.weights, targets, args.constant, args.per, args.statistics, args.exact
    )
    skipped = left_alone(rows)
    if all(row.why for row in rows):
        advice = 'use an anchor of the same network' if anchor else 'check the checkpoint'
        raise UserError(
            f'{args.lars}: no tensor can be rescaled ({skipped}); {advice}', code='nothing-rescaled'
        )
    if args.strict and left_alone([row for row in rows if row.why != WHOLE_NUMBERS]):
        raise UserError(
            f'--strict: {skipped}, so nothing was written; leave out --strict to write the checkpoint',
            code='strict',
        )
    write_outputs(args, source, weights, str(anchor or f'constant {args.constant}'))
    print_table(('before', 'anchor', 'ratio'), [cells(row) for row in rows], 'norms', head='tensor')
    draw(args, source, weights, anchor, rows)
    if skipped:
        print_log(skipped, level=30)
    if not looks_lars_trained(source.weights):
        growth = typical_growth(source.weights)
        times = 'unknown' if growth is None else f'{growth:.2f}'
        message = f'{args.lars} does not look LARS-trained (growth of 3x3 convolutions: {times})'
        print_log(message, level=30)
    print(
        f'{args.out} holds {len(weights)} tensors, {sum(not row.why for row in rows)} of them rescaled'
    )


def advise(args: argparse.Namespace) -> None:
    """Print the weight norms, whether they look LARS-trained, a predicted learning rate, and a recommendation."""
    from mmairl.checkpoints.norms import (
        looks_lars_trained,
        predicted_times,
        typical_growth,
        weight_norms,
    )
    from mmairl.checkpoints.read import read_backbone
    from mmairl.report.table import print_table

    weights = read_backbone(args.lars, args.part, args.prefix).weights
    growth = typical_growth(weights)
    if growth is None:
        raise UserError(
            f'{args.lars}: --advise requires 3x3 convolutions; try several learning rates instead',
            code='no-3x3',
        )
    rows = [
        (tensor.name, [f'{tensor.norm:.4f}', f'{tensor.growth:.2f}'])
        for tensor in weight_norms(weights, kernel=3)
    ]
    print_table(('norm', 'growth'), rows, f'3x3 convolutions of {args.lars}', head='tensor')
    grown = looks_lars_trained(weights)
    verdict = 'typical of LARS' if grown else 'not typical of LARS'
    print(f'the typical norm is {growth:.2f} times its initial value, which is {verdict}')
    rates = 'below the rate of the recipe'
    if args.anchor:
        anchor = read_backbone(args.anchor, args.anchor_part, args.anchor_prefix).weights
        times = predicted_times(weights, anchor)
        if 'gains' in times:
            rate = args.rate * times['gains']
            rates = f'on both sides of {rate:.2g}'
            print(
                f'if a learning rate of {args.rate:g} suits {args.anchor}, {rate:.2g} is predicted for this network'
            )
        else:
            print(
                'no prediction of the learning rate, because this network or the anchor has no batch norm gains'
            )
    else:
        print(
            'to predict a learning rate, set --anchor to a network that your recipe suits, and --rate to the rate of the recipe'
        )
    print(ADVICE[grown].format(rates=rates))


def write_outputs(args: argparse.Namespace, source: 'Backbone', weights: dict, anchor: str) -> None:
    """Write the rescaled checkpoint, which contains only weights.

    If the source is the student of a training checkpoint of mmairl or OpenMMLab, the weights of the checkpoint's other networks
    are copied, too. Otherwise the file contains only the backbone.
    """
    from mmairl.checkpoints.load import load_checkpoint
    from mmairl.checkpoints.pickles import ORIGIN, write_checkpoint

    exact = ', exact' if args.exact else ''
    record = {
        **source.record,
        'normrescale': f'{anchor}, per {args.per}, statistics {args.statistics}{exact}',
    }
    state = {f'backbone.{key}': value for key, value in weights.items()}
    meta = {ORIGIN: record}
    loaded = load_checkpoint(source.path)
    stored = loaded.get('meta')
    if source.source.startswith('mmairl') and args.part == 'student' and 'state_dict' in loaded:
        state = {**loaded['state_dict'], **state}
        if isinstance(stored, dict):
            meta |= {key: value for key, value in stored.items() if key in KEPT_META}
    write_checkpoint(dict(meta=meta, state_dict=state), args.out)


def cells(row: 'TensorChange') -> tuple[str, list[str]]:
    *norms, ratio = (
        '' if value is None else f'{value:.4f}' for value in (row.norm, row.anchor, row.ratio)
    )
    return row.name, [*norms, ratio or row.why]


def draw(
    args: argparse.Namespace,
    source: 'Backbone',
    weights: dict,
    anchor: 'Backbone | None',
    rows: list['TensorChange'],
) -> None:
    """Save a figure with the weight norms of input, anchor and output (as in Fig. 3a), and the table of norms."""
    from mmairl.checkpoints.norms import weight_norms
    from mmairl.report.figures import lines, norm_curves, save_figure
    from mmairl.report.table import save_table

    stem = Path(args.out).with_name(f'{Path(args.out).stem}_norms')
    shown = {Path(args.lars).name: source.weights}
    if anchor:
        # Checkpoints of different runs may have the same file name.
        shown[f'{Path(anchor.path).name} (anchor)'] = anchor.weights
    shown[f'{Path(args.out).name} (rescaled)'] = weights
    norms = {name: weight_norms(tensors, kernel=3) for name, tensors in shown.items()}
    has_figure = any(norms.values())
    if has_figure:
        save_figure(lines(**norm_curves(norms)), stem)
    header = ('tensor', 'before', 'anchor', 'ratio', 'left alone because')
    save_table(header, [(row.name, row.norm, row.anchor, row.ratio, row.why) for row in rows], stem)
    print(f'figure and table: {stem}.png, .svg, .csv' if has_figure else f'table: {stem}.csv')
