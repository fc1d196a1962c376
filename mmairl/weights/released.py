"""Models that others have released, by name: 'torchvision:resnet50' stands for a file wherever a checkpoint is read."""

from pathlib import Path
from urllib.error import URLError

import torch

from mmairl.errors import UserError


def is_released(name: str | Path) -> bool:
    return str(name).startswith('torchvision:')


def released_file(name: str) -> Path:
    """The supervised model's file where torch keeps such files, fetched the first time."""
    import torchvision

    model = name.partition(':')[2]
    if model not in torchvision.models.list_models(torchvision.models):
        raise UserError(f"'{name}' is not a released model; say torchvision:NAME, such as torchvision:resnet50")
    url = torchvision.models.get_model_weights(model)['IMAGENET1K_V1'].url
    file = Path(torch.hub.get_dir()) / 'checkpoints' / Path(url).name
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(file), hash_prefix=file.stem.rpartition('-')[2])
        except (URLError, OSError) as error:
            raise UserError(f'{name} could not be fetched ({error}); put the file of {url} at {file}') from error
    return file
