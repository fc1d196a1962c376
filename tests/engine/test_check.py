"""What is found wrong in a config before anything is built, and what is left alone."""

import pytest

from mmairl.configs import load_config
from mmairl.engine.check import check_config
from mmairl.errors import UserError

WRONG = {
    'a misspelt key of the scaling rule': ({'auto_scale_lr.base_batchsize': 8}, "did you mean 'base_batch_size'"),
    'a key that ZeRO has not': ({'strategy': dict(type='ZeroStrategy', fp16={})}, "strategy has no key 'fp16'"),
    'a number for a section': ({'fast': 5}, 'fast=5 is not a section with keys; set fast=dict(precision=...)'),
    'a misspelt key of the processes': ({'env_cfg.dist_cfg.backnd': 'gloo'}, "did you mean 'backend'"),
    'a misspelt protocol': ({'recipes': dict(linaer='a')}, "recipes has no key 'linaer'; did you mean 'linear'"),
    'half an epoch': ({'train_cfg.max_epochs': 1.5}, 'max_epochs=1.5 is not a whole number of 1 or more'),
    'nothing to train': ({'optim_wrapper': None}, 'sets optim_wrapper=None, so there is nothing to train'),
}


@pytest.mark.parametrize('mistake', WRONG)
def test_a_mistake_is_one_sentence_with_its_key(mistake):
    options, sentence = WRONG[mistake]
    cfg = load_config('mmairl::demo/mocov2plus_shapes.py')
    cfg.merge_from_dict(options)
    with pytest.raises(UserError) as caught:
        check_config(cfg)
    assert sentence in str(caught.value) and '\n' not in str(caught.value)


def test_a_variable_that_the_config_has_used_up_cannot_be_overridden(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text("_base_ = 'mmairl::demo/mocov2plus_shapes.py'\nlength = 3\ntrain_cfg = dict(max_epochs=length)\n")
    with pytest.raises(UserError, match="'length' is a variable that the config has used by now"):
        load_config(path, {'length': 5})
