"""Write a backbone in another format: mmairl convert SRC DST --to {mmairl,torchvision,timm,detectron2,safetensors,hub,onnx}.

With the formats timm, safetensors and hub, a model card (README.md) is written, too. With hub, the output is a folder in the
layout of the Hugging Face Hub. The command to upload the folder is printed, but nothing is uploaded. With onnx, the output
of the converted model is compared with the output in torch before the file is written.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmairl.cli.flags import add_network, add_part, add_prefix, parser_of, positive
from mmairl.errors import UserError

if TYPE_CHECKING:
    from mmengine.config import Config

    from mmairl.checkpoints.read import Backbone

FORMATS = ('mmairl', 'torchvision', 'timm', 'detectron2', 'safetensors', 'hub', 'onnx')
WITH_CARD = ('timm', 'safetensors', 'hub')
# The entries of the record of origin that --mean and --std do not replace.
ARCHITECTURE_AND_INPUT = ('heads', 'norm_eps', 'size', 'channels', 'interpolation')


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of('convert', __doc__)
    parser.add_argument(
        'src',
        help='read this checkpoint in any known format, which is detected from its keys, or a released model: '
        'torchvision:NAME, timm:NAME or hf-hub:ORG/NAME',
    )
    parser.add_argument('dst', help='write this file (with --to hub, this folder)')
    parser.add_argument(
        '--to', choices=FORMATS, default='mmairl', help='choose the format (default: mmairl)'
    )
    add_part(parser)
    add_prefix(parser)
    parser.add_argument(
        '--license',
        metavar='ID',
        help='--to timm, safetensors or hub: state this license in the model card, such as apache-2.0 (default: none)',
    )
    parser.add_argument(
        '--size',
        type=positive,
        default=224,
        metavar='PIXELS',
        help='--to onnx: set the side of the images (default: 224)',
    )
    parser.add_argument(
        '--mean',
        type=float,
        nargs='+',
        help='set the mean of each channel, on a scale from 0 to 1; requires --std (default: as in the checkpoint; with '
        '--to onnx and --config, as in the config)',
    )
    parser.add_argument(
        '--std',
        type=float,
        nargs='+',
        help='set the standard deviation of each channel, on a scale from 0 to 1; requires --mean (default: as in the '
        'checkpoint; with --to onnx and --config, as in the config)',
    )
    add_network(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    args = parse(arguments)

    # These imports come after the parsing of arguments, because importing torch and OpenMMLab takes seconds.
    from mmairl.config import load_config
    from mmairl.io import output
    from mmairl.report.table import print_table

    output(args.dst, args.src, args.config)
    cfg = load_config(args.config) if args.config else None
    backbone = source(args, cfg)
    print_table(('tensors',), summary(backbone), str(backbone))
    if args.to == 'onnx':
        write_onnx_file(args, backbone, cfg)
    else:
        write_weights(args, backbone)


def write_onnx_file(args: argparse.Namespace, backbone: 'Backbone', cfg: 'Config | None') -> None:
    from mmairl.checkpoints.export_onnx import write_onnx

    error = write_onnx(backbone, args.dst, args.size, cfg, backbone.input if args.mean else None)
    print(
        f'{args.dst} maps `images`, normalized as the metadata of the file states, to `features`; '
        f'these features differ from the features of torch by at most {error:.1e} of the largest feature'
    )


def write_weights(args: argparse.Namespace, backbone: 'Backbone') -> None:
    from mmairl.checkpoints.hub_export import write_hub
    from mmairl.checkpoints.write import write_backbone
    from mmairl.report.card import write_card

    file = args.dst
    if args.to == 'hub':
        file = write_hub(backbone, args.dst, args.license or '')
    else:
        write_backbone(backbone, args.dst, args.to)
    if args.to in WITH_CARD:
        card = write_card(backbone, file, args.to, args.license or '')
        print(f'wrote the model card {card}' + ('' if args.license else '; fill in the license'))
    print(f'{args.dst} holds {len(backbone.weights)} tensors in the format {args.to}')
    if args.to == 'hub':
        print(f"load it with timm.create_model('local-dir:{args.dst}', pretrained=True)")
        print(f'upload it with hf upload ORG/NAME {args.dst}')


def source(args: argparse.Namespace, cfg: 'Config | None') -> 'Backbone':
    """Return the backbone to convert. Its mean and std are those of the flags or, by default, of the file."""
    from dataclasses import replace

    from mmairl.checkpoints.hub_config import parse_statistics
    from mmairl.checkpoints.read import read_backbone, warn_of_assumed_statistics
    from mmairl.evaluation.backbone import tensors_of_config

    backbone = read_backbone(
        args.src, args.part, args.prefix, tensors_of_config(cfg) if cfg else None
    )
    if cfg is None:
        _ = backbone.network  # accessing `network` raises an error if a tensor is missing
    if bool(args.mean) != bool(args.std):
        raise UserError(
            '--mean, --std: only one of them is set; set both or neither', code='half-statistics'
        )
    if args.mean:
        given = {
            name: parse_statistics(getattr(args, name), f'--{name}', args.src)
            for name in ('mean', 'std')
        }
        record = backbone.record
        kept = {name: record[name] for name in ARCHITECTURE_AND_INPUT if name in record}
        return replace(backbone, origin={**backbone.origin, **kept, **given}, settings={})
    if not backbone.input.origin and args.to in (*WITH_CARD, 'onnx') and cfg is None:
        warn_of_assumed_statistics(backbone, '--mean and --std')
    return backbone


def summary(backbone: 'Backbone') -> list[tuple[str, list[str]]]:
    """Return the rows of a table: how many tensors were read, kept under their names, renamed, left out and added."""
    from mmairl.checkpoints.load import first_few

    changed = [f'{old} → {new}' for old, new in backbone.renamed.items() if old != new]
    # Count the dropped keys by module.
    modules = Counter('.'.join(key.rsplit('.', 1)[0].split('.')[:2]) for key in backbone.dropped)
    counters = len(backbone.weights.keys() - set(backbone.renamed.values()))
    rows = {
        'read': f'{len(backbone.renamed) + len(backbone.dropped)} tensors',
        'kept under their names': len(backbone.renamed) - len(changed),
        'renamed': f'{len(changed)}, such as {changed[0]}' if changed else 0,
        'left out': len(backbone.dropped),
    }
    if modules:
        names = first_few([f'{name}.* ({number})' for name, number in modules.items()])
        rows['left out'] = f'{len(backbone.dropped)}: {names}'
    if counters:
        rows['added'] = (
            f'{counters} batch counters with the value 0, which the source does not contain'
        )
    return [(name, [str(value)]) for name, value in rows.items()]
