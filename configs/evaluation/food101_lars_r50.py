# Food-101, for fine-tuning with LARS instead of SGD.
_base_ = 'food101_r50.py'
recipes = dict(finetune='finetune_20k_lars')
