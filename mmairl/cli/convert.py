"""Change how a backbone is stored: tools/convert.py SRC DST --to {mmairl,torchvision,timm,detectron2,safetensors,onnx}.

Beside weights for timm and as safetensors it leaves a model card, README.md, for whoever puts them on a hub. An ONNX file is
compared with torch before it is kept.
"""

import argparse
from dataclasses import replace

from mmengine.config import Config

from mmairl.checkpoints.hub_config import statistics
from mmairl.checkpoints.read import Backbone, read_backbone, warn_of_assumed_statistics
from mmairl.checkpoints.write import WRITERS, write_backbone
from mmairl.cli.flags import positive
from mmairl.config import load_config
from mmairl.errors import UserError, one_sentence_errors
from mmairl.evaluation.backbone import tensors_of_config
from mmairl.io import output
from mmairl.report.card import write_card
from mmairl.report.table import print_table

WITH_CARD = ('timm', 'safetensors')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('src', help='a checkpoint of any known project, recognised by its keys')
    parser.add_argument('dst')
    parser.add_argument('--to', choices=[*WRITERS, 'onnx'], default='mmairl')
    parser.add_argument('--part', choices=['student', 'teacher'], default='student')
    parser.add_argument('--prefix', help='read the backbone below this beginning of the keys; found by default')
    parser.add_argument(
        '--size', type=positive, default=224, help='--to onnx: side of the images in pixels (default: 224)'
    )
    parser.add_argument(
        '--mean', type=float, nargs='+', help='mean of each channel, from 0 to 1; by default what is stated'
    )
    parser.add_argument('--std', type=float, nargs='+', help='standard deviation of each channel, like --mean')
    parser.add_argument('--config', help='take the network from this config; needed if it is no ResNet or ViT')
    return parser.parse_args()


def summary(backbone: Backbone) -> list[tuple[str, list[str]]]:
    """How many keys kept their names, which got new ones and which were left behind, by the beginning of the name."""
    changed = {old: new for old, new in backbone.renamed.items() if old != new}
    rows = [('read', [f'{len(backbone.renamed) + len(backbone.dropped)} tensors'])]
    rows.append(('kept under their names', [str(len(backbone.renamed) - len(changed))]))
    example = next(iter(changed.items()), None)
    rows.append(('renamed', [f'{len(changed)}' + (f', as {example[0]} → {example[1]}' if example else '')]))
    rows.append(('left behind', [f'{len(backbone.dropped)}' + _groups(backbone.dropped)]))
    counters = len(backbone.weights.keys() - set(backbone.renamed.values()))
    if counters > 0:
        rows.append(('added', [f'{counters} batch counters of 0, which this format does not store']))
    return rows


def _groups(keys: list[str]) -> str:
    groups: dict[str, int] = {}
    for key in keys:
        name = key.rsplit('.', 1)[0].split('.')
        head = '.'.join(name[:2])
        groups[head] = groups.get(head, 0) + 1
    shown = [f'{name}.* ({count})' for name, count in list(groups.items())[:6]]
    return ': ' + ', '.join(shown) + (', ...' if len(groups) > 6 else '') if shown else ''


@one_sentence_errors
def main() -> None:
    args = parse_args()
    output(args.dst, args.src, args.config)
    cfg = load_config(args.config) if args.config else None
    backbone = source(args, cfg)
    print_table(('tensors',), summary(backbone), str(backbone))
    if args.to == 'onnx':
        from mmairl.checkpoints.export_onnx import write_onnx

        off = write_onnx(backbone, args.dst, args.size, cfg)
        print(
            f'{args.dst} turns `images`, normalised as its metadata says, into `features`, {off:.1e} of the largest from torch'
        )
        return
    write_backbone(backbone, args.dst, args.to)
    if args.to in WITH_CARD:
        print(f'the model card, in which the licence is yours to fill in, is {write_card(backbone, args.dst, args.to)}')
    print(f'{args.dst} holds {len(backbone.weights)} tensors in the format {args.to}')


def source(args: argparse.Namespace, cfg: Config | None) -> Backbone:
    """Return the whole backbone of the source, with the statistics of the flags, the file or the config."""
    backbone = read_backbone(args.src, args.part, args.prefix, tensors_of_config(cfg) if cfg else None)
    if cfg is None:
        _ = backbone.network  # raises unless every tensor is there
    if bool(args.mean) != bool(args.std):
        raise UserError('--mean and --std describe the same images; give both', code='half-statistics')
    if args.mean:
        given = {name: statistics(getattr(args, name), f'--{name}', args.src) for name in ('mean', 'std')}
        return replace(backbone, origin={**backbone.origin, **given}, settings={})
    if not backbone.input.origin and args.to in (*WITH_CARD, 'onnx') and cfg is None:
        warn_of_assumed_statistics(backbone, '--mean and --std')
    return backbone


if __name__ == '__main__':
    main()
