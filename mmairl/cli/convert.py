"""The command `mmairl convert`."""

from typing import Literal

from mmairl.cli.command import Part, Positive

Format = Literal['mmairl', 'torchvision', 'timm', 'detectron2', 'safetensors', 'hub', 'onnx']


def convert(
    src: str,
    dst: str,
    *,
    to: Format = 'mmairl',
    part: Part = 'student',
    prefix: str | None = None,
    config: str | None = None,
    license: str = '',
    size: Positive | None = None,
) -> None:
    """Write a backbone in another format

    A model card next to the output (README.md) shows how to prepare images. With hub, the output is a folder in the layout of
    the Hugging Face Hub; nothing is uploaded. With onnx, the output of the converted model is compared with torch's.

    Args:
        src: read this checkpoint in any known format, which is detected from its keys, or a released model:
            torchvision:NAME, timm:NAME or hf-hub:ORG/NAME
        dst: write this file (with --to hub, this folder)
        to: choose the format
        part: choose the network in the checkpoint
        prefix: set the prefix of the backbone in the keys of the file (default: detect it)
        config: build the network of this config; required for networks other than ResNets and ViTs (default: detect it)
        license: state this license in the model card, such as apache-2.0 (default: none)
        size: --to onnx: set the side of the images (default: as the checkpoint states, else 224)
    """
    # These imports come after the parsing of arguments, because importing torch and OpenMMLab takes seconds.
    from mmairl.checkpoints.architecture import tensors_of
    from mmairl.checkpoints.read import read_backbone
    from mmairl.config import load_config
    from mmairl.io import output
    from mmairl.report.card import write_card

    output(dst, src, config) if to != 'hub' else None
    cfg = load_config(config) if config else None
    backbone = read_backbone(src, part, prefix, tensors_of(cfg.model.backbone) if cfg else None)
    if cfg is None:
        _ = backbone.network  # accessing `network` raises an error if a tensor is missing
    print(f'{backbone}: {len(backbone.weights)} tensors, {len(backbone.dropped)} left out')
    file = dst
    if to == 'onnx':
        from mmairl.checkpoints.export_onnx import write_onnx

        error = write_onnx(backbone, dst, size or backbone.input.size, cfg)
        print(f'the features differ from those of torch by at most {error:.1e} of the largest')
    elif to == 'hub':
        from mmairl.checkpoints.hub_export import write_hub

        file = write_hub(backbone, dst, license)
    else:
        from mmairl.checkpoints.write import write_backbone

        write_backbone(backbone, dst, to)
    print(f'{dst} holds the network in the format {to}')
    card = write_card(backbone, file, to, license, cfg)
    print(f'how to prepare images for it, in Python: {card}')
    if to == 'hub':
        print(f"load it with timm.create_model('local-dir:{dst}', pretrained=True)")
