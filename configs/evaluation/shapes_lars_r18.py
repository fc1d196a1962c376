# The demo's shapes, for fine-tuning with LARS instead of SGD.
_base_ = 'shapes_r18.py'
recipes = dict(finetune='finetune_shapes_lars')
