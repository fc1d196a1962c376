"""Give a LARS-trained backbone the norms of an anchor: tools/normrescale.py LARS_CKPT OUT --anchor CKPT (Eq. 3).

tools/normrescale.py CKPT --advise [--anchor CKPT] says whether it is long, which rate its norms predict, and what to do.
"""

import argparse
from pathlib import Path

from mmengine.logging import print_log

from mmairl.checkpoints.load import load_checkpoint
from mmairl.checkpoints.normrescale import PER, STATISTICS, WHOLE_NUMBERS, Row, left_alone, normrescale
from mmairl.checkpoints.norms import looks_lars_trained, predicted_times, typical_growth, weight_norms
from mmairl.checkpoints.pickles import ORIGIN, write_checkpoint
from mmairl.checkpoints.read import Backbone, read_backbone
from mmairl.cli.flags import above_zero
from mmairl.errors import UserError, one_sentence_errors, printable
from mmairl.io import output
from mmairl.report.figures import norm_lines, save_figure
from mmairl.report.table import print_table, save_table

KEPT_META = ('cfg', 'settings', 'epoch', 'iter', 'dataset_meta', 'mmairl_version')  # what describes the weights
ADVICE = {
    True: "what to do: rescale it by an anchor (plain, not --exact) and keep your recipe's rate, or search lower rates",
    False: 'what to do: nothing here looks as LARS leaves it; if your recipe is for SGD with weight decay and this network is '
    'not, compare NormRescale by an SGD-trained anchor, or lower rates, on held-out images',
}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('lars', metavar='LARS_CKPT', help='the checkpoint to rescale, of any known project')
    parser.add_argument('out', nargs='?', help='the checkpoint to write; the table and the figure go beside it')
    norms = parser.add_mutually_exclusive_group()
    norms.add_argument('--anchor', metavar='CKPT', help='take the norms of this one, or of torchvision:NAME')
    norms.add_argument('--constant', type=above_zero, help="no anchor: multiply by this; the paper's is 0.1")
    parser.add_argument('--part', choices=['student', 'teacher'], default='student')
    parser.add_argument('--anchor-part', choices=['student', 'teacher'], default='student')
    parser.add_argument('--prefix', help='read the backbone below this beginning of the keys; found by default')
    parser.add_argument('--anchor-prefix', help='the same for the anchor')
    parser.add_argument('--per', choices=PER, default='tensor', help='match norms per weight tensor or output channel')
    parser.add_argument(
        '--statistics',
        choices=STATISTICS,
        default='keep',
        help="rescale: BN's running statistics too, as the release did",
    )
    parser.add_argument('--exact', action='store_true', help='rescale what batch norm frees, and keep the function')
    parser.add_argument('--advise', action='store_true', help='write nothing; say what to do before fine-tuning')
    parser.add_argument('--rate', type=above_zero, default=0.01, help="--advise: the fine-tuning recipe's")
    parser.add_argument('--strict', action='store_true', help='refuse when a tensor cannot be rescaled')
    return parser.parse_args()


@one_sentence_errors
def main() -> None:
    args = parse_args()
    if args.advise:
        if args.out or args.constant:
            raise UserError('--advise writes nothing and rescales nothing; leave out the file to write and --constant')
        advise(args)
        return
    if not args.out or not (args.anchor or args.constant):
        raise UserError('give a checkpoint to write, and --anchor or --constant; --advise alone writes nothing')
    output(args.out, args.lars, args.anchor)
    source = read_backbone(args.lars, args.part, args.prefix)
    if 'normrescale' in source.origin and args.constant:
        raise UserError(f'{args.lars} was rescaled before ({source.origin["normrescale"]}); scale the original instead')
    anchor = read_backbone(args.anchor, args.anchor_part, args.anchor_prefix) if args.constant is None else None
    names = anchor.weights if anchor else None
    weights, rows = normrescale(source.weights, names, args.constant, args.per, args.statistics, args.exact)
    if all(row.why for row in rows):
        raise UserError(f'no tensor of {args.lars} could be rescaled by {anchor}: {left_alone(rows)}')
    skipped = left_alone(rows)
    if args.strict and left_alone([row for row in rows if row.why != WHOLE_NUMBERS]):
        raise UserError(f'{skipped}; nothing was written, leave out --strict to write it all the same')
    write(args, source, weights, str(anchor or f'constant {args.constant}'))
    print_table(('before', 'anchor', 'ratio'), [cells(row) for row in rows], 'norms', head='tensor')
    draw(args, source, weights, anchor, rows)
    if skipped:
        print_log(printable(skipped), level=30)
    if not looks_lars_trained(source.weights):
        print_log(f'{args.lars} does not look LARS-trained: {growth_of(source.weights)}', level=30)
    print(f'{args.out} holds {len(weights)} tensors, {sum(not row.why for row in rows)} of them rescaled')


def advise(args: argparse.Namespace) -> None:
    """Print the norms, whether the network is long, the rate that they predict, and what to do."""
    weights = read_backbone(args.lars, args.part, args.prefix).weights
    if (grown := typical_growth(weights)) is None:
        raise UserError(f'{args.lars} has no 3x3 convolutions, whose norms the advice is by; search the rate')
    rows = [(tensor.name, [f'{tensor.norm:.4f}', f'{tensor.growth:.2f}']) for tensor in weight_norms(weights, kernel=3)]
    print_table(('norm', 'times its start'), rows, f'3x3 convolutions of {args.lars}', head='tensor')
    long = looks_lars_trained(weights)
    print(f'the typical one is {grown:.2f} times as long as at its start: the network is {"" if long else "not "}long')
    if args.anchor:
        times = predicted_times(weights, read_backbone(args.anchor, args.anchor_part, args.anchor_prefix).weights)
        if 'gains' in times:
            rate = args.rate * times['gains']
            print(
                f'if {args.rate:g} suits {args.anchor}, the gains predict {rate:.2g} for this one: search on both sides'
            )
        else:
            print('no rate is predicted, for this one or the anchor has no gains of batch norm')
    else:
        print(
            'for a predicted rate give --anchor, a network that your recipe suits, and --rate, the rate of that recipe'
        )
    print(ADVICE[long])


def growth_of(weights: dict) -> str:
    ratio = typical_growth(weights)
    return 'it has no 3x3 convolutions' if ratio is None else f'its 3x3 convolutions are at {ratio:.2f} of their start'


def write(args: argparse.Namespace, source: Backbone, weights: dict, anchor: str) -> None:
    """Write weights only: of a training checkpoint of ours all networks, of any other file the backbone."""
    how = f'{anchor}, per {args.per}, statistics {args.statistics}' + ', exact' * args.exact
    record = {**source.record, 'normrescale': how}
    state = {f'backbone.{key}': value for key, value in weights.items()}
    meta = {ORIGIN: record}
    loaded = load_checkpoint(source.path)
    if source.source.startswith('mmairl') and args.part == 'student' and 'state_dict' in loaded:
        state = {**loaded['state_dict'], **state}
        meta |= {key: value for key, value in loaded.get('meta', {}).items() if key in KEPT_META}
    write_checkpoint(dict(meta=meta, state_dict=state), args.out)


def cells(row: Row) -> tuple[str, list[str]]:
    *norms, ratio = ('' if value is None else f'{value:.4f}' for value in (row.norm, row.anchor, row.ratio))
    return row.name, [*norms, ratio or row.why]


def draw(args: argparse.Namespace, source: Backbone, weights: dict, anchor: Backbone | None, rows: list[Row]) -> None:
    """Fig. 3a of what came in, of the anchor and of what went out, with the table's numbers beside it."""
    stem = Path(args.out).with_name(f'{Path(args.out).stem}_norms')
    shown = {Path(args.lars).name: source.weights} | ({Path(anchor.path).name: anchor.weights} if anchor else {})
    shown[f'{Path(args.out).name} (rescaled)'] = weights
    lines = {name: weight_norms(tensors, kernel=3) for name, tensors in shown.items()}
    if any(lines.values()):
        save_figure(norm_lines(lines, 'norms of the 3x3 convolutions'), stem)
    save_table(
        ('tensor', 'before', 'anchor', 'ratio', 'left alone because'),
        [(row.name, row.norm, row.anchor, row.ratio, row.why) for row in rows],
        stem,
    )
    print(f'figure and table: {stem}.png, .svg, .csv')


if __name__ == '__main__':
    main()
