"""Compare how fast mmairl and other libraries make two views of an image: in a data worker, or in batches on the device."""

import random
from collections.abc import Callable, Iterator
from functools import reduce

import cv2
import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor
from torchvision import transforms as v1
from torchvision.transforms import v2

from mmairl.config import load_config
from mmairl.data.datasets import build_views
from mmairl.data.preprocess import ViewPreprocessor
from projects.benchmark.timing import Case

Views = Callable[[], object]
SIZE = (375, 500)  # height and width of a typical photograph of ImageNet
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
VIEW = load_config('mmairl::_base_/views/mocov2.py').mocov2_view
REST = VIEW[1:]  # the operations after the crop, for images that are already cropped


def augment(device: str, quick: bool) -> Iterator[Case]:
    """Compare pipelines that make MoCo v2's two views: in a worker, one image at a time, or on the device, in batches."""
    count = 2 if quick else 64
    photographs = [photograph(seed) for seed in range(min(count, 8))] * max(1, count // 8)
    ours = seeded(lambda: [views(image) for image in images])
    images, views = [tensor(pixels) for pixels in photographs], worker_views(VIEW)
    name = f'two views of {count} images of 500 x 375, in a worker'
    for peer_name, peer in worker_peers(photographs).items():
        yield Case(name, peer_name, ours, seeded(peer), same_shapes, count)

    batch = 4 if quick else 64
    crops = [
        torch.stack([tensor(photograph(seed)[:224, :224]) for seed in range(batch)]).to(device)
    ] * 2
    augmented = on_device(crops, device)
    name = f'two views of a batch of {batch} crops of 224, on the device'
    rest = worker_views(REST)
    one_by_one = seeded(lambda: [rest(image) for image in crops[0].cpu()])
    one_name = 'the operations of a worker, one image at a time on a core'
    yield Case(name, one_name, augmented, one_by_one, images=batch)


def photograph(seed: int) -> np.ndarray:
    """Return an image (H, W, C) of smooth colors with some noise. Its JPEG is about as large as a photograph of ImageNet."""
    generator = np.random.default_rng(seed)
    smooth = cv2.resize(
        generator.random((12, 16, 3), np.float32), SIZE[::-1], interpolation=cv2.INTER_CUBIC
    )
    return (255 * (smooth + generator.normal(0, 0.06, smooth.shape)).clip(0, 1)).astype(np.uint8)


def tensor(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def seeded(work: Views) -> Views:
    """Return a function that calls `work` with the same random draws every time, so that all rounds do the same work."""

    def repeated() -> object:
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(0)
        return work()

    return repeated


def worker_views(view: list[dict]) -> Callable[[Tensor], list[Tensor]]:
    pipelines = build_views([view, view])
    return lambda image: [
        reduce(lambda made, step: step(made), pipeline, image) for pipeline in pipelines
    ]


def worker_peers(photographs: list[np.ndarray]) -> dict[str, Views]:
    """Return, for each other library, a function that makes two views of each photograph, decoded in the library's format."""
    pil = [Image.fromarray(pixels) for pixels in photographs]
    tensors = [tensor(pixels) for pixels in photographs]
    released, batched = torchvision_released(), torchvision_v2()
    return {
        'torchvision on PIL, as MoCo v2 was released': lambda: [
            [released(image) for _ in '12'] for image in pil
        ],
        'torchvision v2 on tensors': lambda: [[batched(image) for _ in '12'] for image in tensors],
    }


def torchvision_released() -> v1.Compose:
    """Return the view of MoCo's main_moco.py without ToTensor and Normalize, because mmairl normalizes on the device."""
    return v1.Compose(
        [
            v1.RandomResizedCrop(224, scale=(0.2, 1.0)),
            v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            v1.RandomGrayscale(p=0.2),
            v1.RandomApply([pil_blur], p=0.5),
            v1.RandomHorizontalFlip(),
            v1.PILToTensor(),
        ]
    )


def pil_blur(image: Image.Image) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


def torchvision_v2() -> v2.Compose:
    return v2.Compose(
        [
            v2.RandomResizedCrop(224, scale=(0.2, 1.0), antialias=True),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            v2.RandomGrayscale(p=0.2),
            v2.RandomApply([v2.GaussianBlur(23, (0.1, 2.0))], p=0.5),
            v2.RandomHorizontalFlip(),
        ]
    )


def on_device(crops: list[Tensor], device: str) -> Views:
    preprocessor = ViewPreprocessor(MEAN, STD, views=[REST, REST]).to(device)
    return seeded(lambda: preprocessor(dict(inputs=crops), training=True)['inputs'])


def same_shapes(ours: list[list[Tensor]], theirs: list[list[Tensor]]) -> None:
    """Check only the shapes and data types of the views, because the random draws of mmairl and of the other library differ."""
    for side in (ours, theirs):
        assert all(
            view.shape == (3, 224, 224) and view.dtype == torch.uint8
            for pair in side
            for view in pair
        )
