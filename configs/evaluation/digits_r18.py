# Digits by every protocol, with the demo's small network.
_base_ = ['../_base_/models/backbone_shapes.py', '../_base_/evaluation/digits.py']
recipes = dict(linear='linear_shapes_20e', finetune='finetune_shapes')
