"""Change how a backbone is stored: tools/convert.py SRC DST --to {mmairl,torchvision,timm,detectron2,safetensors,onnx}.

Beside weights for timm and as safetensors it leaves a model card, README.md, for whoever puts them on a hub. An ONNX file is
compared with torch before it is kept.
"""

import argparse

from mmairl.configs import load_config
from mmairl.errors import one_sentence_errors
from mmairl.files import output
from mmairl.flags import positive
from mmairl.report.card import write_card
from mmairl.report.table import print_table
from mmairl.weights.read import Backbone, read_backbone
from mmairl.weights.write import WRITERS, write_backbone

WITH_CARD = ('timm', 'safetensors')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('src', help='a checkpoint of any known project, recognised by its keys')
    parser.add_argument('dst')
    parser.add_argument('--to', choices=[*WRITERS, 'onnx'], default='mmairl')
    parser.add_argument('--part', choices=['student', 'teacher'], default='student')
    parser.add_argument('--size', type=positive, default=224, help="--to onnx: the images' side in pixels")
    parser.add_argument('--config', help='--to onnx: a config with the backbone, where that is no ResNet')
    return parser.parse_args()


def summary(backbone: Backbone) -> list[tuple[str, list[str]]]:
    """How many keys kept their names, which got new ones and which were left behind, by the beginning of the name."""
    changed = {old: new for old, new in backbone.renamed.items() if old != new}
    rows = [('read', [f'{len(backbone.renamed) + len(backbone.dropped)} tensors'])]
    rows.append(('kept under their names', [str(len(backbone.renamed) - len(changed))]))
    example = next(iter(changed.items()), None)
    rows.append(('renamed', [f'{len(changed)}' + (f', as {example[0]} → {example[1]}' if example else '')]))
    rows.append(('left behind', [f'{len(backbone.dropped)}' + _groups(backbone.dropped)]))
    counters = len(backbone.weights) - len(backbone.renamed)
    if counters > 0:  # registers have joined the class token
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
    backbone = read_backbone(args.src, args.part)
    print_table(('tensors',), summary(backbone), str(backbone))
    if args.to == 'onnx':
        from mmairl.weights.to_onnx import write_onnx  # and with it the networks of mmpretrain, which take seconds

        off = write_onnx(backbone, args.dst, args.size, load_config(args.config) if args.config else None)
        print(
            f'{args.dst} turns `images`, normalised as its metadata says, into `features`, {off:.1e} of the largest from torch'
        )
        return
    write_backbone(backbone, args.dst, args.to)
    if args.to in WITH_CARD:
        print(f'the model card, in which the licence is yours to fill in, is {write_card(backbone, args.dst, args.to)}')
    print(f'{args.dst} holds {len(backbone.weights)} tensors in the format {args.to}')


if __name__ == '__main__':
    main()
