"""The command `mmairl embed`."""

from pathlib import Path

from mmairl.cli.command import Count, Part, Positive
from mmairl.errors import UserError


def embed(
    checkpoint: str,
    images: str,
    out: Path,
    *,
    part: Part = 'student',
    config: str | None = None,
    size: Positive | None = None,
    workers: Count = 0,
) -> None:
    """Write the features of images to a file

    mmairl embed CKPT images/ features.parquet

    Args:
        checkpoint: compute features with this checkpoint in any known format, or with a released model such as
            torchvision:resnet50
        images: read the images in this folder or archive
        out: write the paths, labels (the names of the folders) and vectors of the images to this .parquet or .npz file
        part: choose the network in the checkpoint
        config: build the network of this config; required for networks other than ResNets and ViTs (default: detect it)
        size: set the side of the center crop (default: as in training if the checkpoint states it, else 224)
        workers: load images in N processes (default: 0)
    """
    if out.suffix not in ('.parquet', '.npz'):
        raise UserError(
            f"embed: expected a .parquet or .npz file to write ('{out}'); change the suffix",
            code='unknown-suffix',
        )
    # These imports come after the parsing of arguments, because importing torch and OpenMMLab takes seconds.
    import numpy as np

    import mmairl
    from mmairl.io import output, replacing

    output(out, checkpoint, config)
    settings = dict(part=part, config=config, size=size, workers=workers)
    vectors, paths = mmairl.embed(checkpoint, images, **settings)
    columns = dict(path=paths, label=[Path(path).parent.name for path in paths])
    with replacing(out) as temporary, temporary.open('wb') as file:
        if out.suffix == '.npz':
            np.savez(file, vector=vectors, **columns)
        else:
            from datasets import Dataset

            Dataset.from_dict({**columns, 'vector': vectors}).to_parquet(file)
    print(f'{out} holds {vectors.shape[1]} features of each of {len(paths)} images')
