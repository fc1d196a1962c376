"""Where NormRescale's norms come from: a checkpoint of any project, or a released model of torchvision."""

from pathlib import Path
from urllib.error import URLError

import torch

from mmairl.errors import UserError
from mmairl.weights.read import Backbone, read_backbone


def anchor_from(checkpoint: str | None = None, kind: str | None = None, part: str = 'student') -> Backbone:
    """The anchor's backbone: `checkpoint` is a file, `kind` is such as 'torchvision:resnet50'."""
    return read_backbone(checkpoint, part) if kind is None else read_backbone(_torchvision_file(kind))


def _torchvision_file(kind: str) -> Path:
    """The file of a supervised model as torch keeps it on disk, fetched the first time."""
    import torchvision

    source, _, name = kind.partition(':')
    if source != 'torchvision' or name not in torchvision.models.list_models(torchvision.models):
        raise UserError(f"the anchor kind '{kind}' is not known; say torchvision:NAME, such as torchvision:resnet50")
    url = torchvision.models.get_model_weights(name)['IMAGENET1K_V1'].url
    file = Path(torch.hub.get_dir()) / 'checkpoints' / Path(url).name
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(file), hash_prefix=file.stem.rpartition('-')[2])
        except (URLError, OSError) as error:
            raise UserError(f'{kind} could not be fetched ({error}); put the file of {url} at {file}') from error
    return file
