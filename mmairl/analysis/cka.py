"""Networks compared stage by stage: which of their features say the same (Fig. 3b)."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from mmairl.analysis.hsic import FullCKA, MinibatchCKA
from mmairl.errors import UserError
from mmairl.models.siamese import pooled

PARTS = 4  # of a network that has no stages by name


def stages_of(backbone: nn.Module) -> dict[str, nn.Module]:
    """A ResNet's four stages, or the last layer of each quarter of a ViT."""
    children = dict(backbone.named_children())
    if 'layer4' in children:
        return {name: children[name] for name in ('layer1', 'layer2', 'layer3', 'layer4')}
    layers = next((children[name] for name in ('layers', 'blocks') if name in children), None)
    if layers is None:
        raise UserError(f'{type(backbone).__name__} has no stages that CKA knows; compare ResNets or ViTs')
    ends = [len(layers) * part // PARTS - 1 for part in range(1, PARTS + 1)]
    return {f'layer{end + 1}': layers[end] for end in ends}


@contextmanager
def listening(backbone: nn.Module):
    """A dictionary that each forward pass fills with the stages' features and, as 'pooled', the network's own."""
    heard: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for name, module in stages_of(backbone).items():

            def hear(_module: nn.Module, _inputs: tuple, output: Tensor, name: str = name) -> None:
                heard[name] = output

            stack.callback(module.register_forward_hook(hear).remove)

        def pool(_module: nn.Module, _inputs: tuple, output: Tensor) -> None:
            heard['pooled'] = pooled(output)

        stack.callback(backbone.register_forward_hook(pool).remove)
        yield heard


@torch.inference_mode()
def stage_cka(a: nn.Module, b: nn.Module, batches: Iterable[Tensor]) -> tuple[Tensor, list[str], list[str]]:
    """CKA of each stage of `a` with each of `b` on the same images, and the stages' names."""
    similarity = MinibatchCKA()
    with listening(a) as heard_a, listening(b) as heard_b:
        for images in batches:
            a(images)
            if a is not b:
                b(images)
            features_a = list(heard_a.values())
            similarity.update(features_a, features_a if a is b else list(heard_b.values()))
    return similarity.value(), list(heard_a), list(heard_b)


@torch.inference_mode()
def network_cka(networks: Sequence[nn.Module], batches: Iterable[Tensor], stage: str = 'pooled') -> Tensor:
    """CKA of one stage between every two networks, such as the epochs of a run."""
    similarity = MinibatchCKA()
    with ExitStack() as stack:
        heard: Sequence[Mapping[str, Tensor]] = [stack.enter_context(listening(network)) for network in networks]
        for images in batches:
            for network in networks:
                network(images)
            features = [one[stage] for one in heard]
            similarity.update(features, features)
    return similarity.value()


@torch.inference_mode()
def full_cka(a: nn.Module, b: nn.Module, batches: Iterable[Tensor], unbiased: bool = False) -> float:
    """CKA of the pooled features over all images at once; the biased one is what Kornblith et al. report."""
    similarity = FullCKA(unbiased)
    for images in batches:
        similarity.update(pooled(a(images)), pooled(b(images)))
    return similarity.value()


@torch.no_grad()
def recalibrate(backbone: nn.Module, batches: Iterable[Tensor]) -> None:
    """Give BN layers the statistics of these images, as weights that NormRescale has changed need before eval mode."""
    layers = [module for module in backbone.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain average over the batches
        layer.train()
    for images in batches:
        backbone(images)
    for layer, momentum in zip(layers, momenta):
        layer.momentum = momentum
    backbone.eval()
