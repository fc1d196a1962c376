"""The start of a transfer run: each pre-trained part gets all of its weights from the checkpoint, or the run does not start."""

from collections.abc import Iterable, Iterator

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn

from mmairl.data_configs import walk
from mmairl.engine.distributed import network_of
from mmairl.errors import UserError
from mmairl.registry import HOOKS
from mmairl.weights.norms import warning_before_fine_tuning
from mmairl.weights.read import read_tensors, weights_for, with_counters


def start_from(cfg: Config, checkpoint: str) -> Config:
    """Take every pre-trained part of the config's model from one checkpoint.

    >>> cfg = start_from(load_config('configs/transfer/voc07_c4_r50_9k.py'), CKPT)  # doctest: +SKIP
    """
    for init in dicts(cfg.model):
        if init.get('type') == 'Pretrained':
            init['checkpoint'] = str(checkpoint)
    return cfg


def dicts(node: object) -> Iterator[dict]:
    """Every dictionary in a config."""
    return (value for _, value in walk(node) if isinstance(value, dict))


@HOOKS.register_module()
class CheckPretrainedHook(Hook):
    """Loads the parts whose init_cfg has type 'Pretrained', in place of mmengine, and refuses what does not fit.

    mmengine loads what happens to fit and warns about the rest, so that a wrong prefix or stem trains from noise. Here a file
    is read once for all parts, before any initialisation, and loaded after it, so that nothing can overwrite the weights.
    """

    priority = 'HIGHEST'

    def __init__(self) -> None:
        self.weights: dict[str, dict[str, Tensor]] = {}
        self.found: list[str] = []

    def before_run(self, runner: Runner) -> None:
        model, files, parts = network_of(runner), {}, {}
        for name, module in model.named_modules():
            for init in dicts(getattr(module, 'init_cfg', None)):
                if 'checkpoint' in init:
                    parts[name] = init
        if not any(name.split('.')[0] == 'backbone' for name in parts):
            raise UserError(
                "the backbone has no pre-trained weights: set model.backbone.init_cfg=dict(type='Pretrained', "
                "checkpoint=..., prefix='backbone.'), or remove CheckPretrainedHook to train from random ones"
            )
        for name, init in parts.items():
            path, prefix = init['checkpoint'], init.get('prefix') or ''
            if not path:
                raise UserError(
                    f'no checkpoint is given for {name}: set model.{name.removesuffix(".layer4")}.init_cfg.checkpoint'
                )
            if init['type'] != 'Pretrained':
                continue  # an initializer of ours, which checks by itself
            if path not in files:
                files[path] = with_counters(read_tensors(path)[0])
            module = model.get_submodule(name)
            self.weights[name] = weights_for(module, files[path], prefix, path)
            module.is_init = True  # mmengine need not initialise it, or read the file
            whose = {'backbone': 'the student of ', 'teacher': 'the teacher of '}.get(prefix.split('.')[0], '')
            self.found.append(f'{name}: all {len(self.weights[name])} keys from {whose}{path}')
            if warning := warning_before_fine_tuning(self.weights[name], f'{name} ({whose}{path})'):
                runner.logger.warning(warning)
        self.found.append(f'new: {", ".join(new_parts(model, parts)) or "nothing"}')

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """A run that is resumed, or that only evaluates, keeps the weights of its own checkpoint."""
        self.weights, self.found = {}, ['the weights are those of the checkpoint just loaded, not of the pre-training']

    def before_train(self, runner: Runner) -> None:
        model = network_of(runner)
        for name, weights in self.weights.items():
            model.get_submodule(name).load_state_dict(weights)
        self.weights = {}
        runner.logger.info('; '.join(self.found))


def new_parts(module: nn.Module, filled: Iterable[str], name: str = '') -> list[str]:
    """The outermost modules with weights that no checkpoint fills."""
    if name in filled or not list(module.parameters()):
        return []
    if name and not any(part.startswith(f'{name}.') for part in filled):
        return [name]
    inner = ((f'{name}.{child}'.lstrip('.'), part) for child, part in module.named_children())
    return [new for child, part in inner for new in new_parts(part, filled, child)]
