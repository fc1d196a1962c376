# CIFAR-100, for fine-tuning with LARS instead of SGD.
_base_ = 'cifar100_r50.py'
recipes = dict(finetune='finetune_20k_lars')
