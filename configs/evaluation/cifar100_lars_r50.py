# CIFAR-100, fine-tuned with LARS instead of SGD.
_base_ = 'cifar100_r50.py'
recipes = dict(finetune='finetune_20k_lars')
