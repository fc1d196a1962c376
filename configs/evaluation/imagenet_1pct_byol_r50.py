# 1 % of ImageNet's labels by BYOL's protocol: the whole network, rate and length selected on held-out images.
_base_ = 'imagenet_1pct_r50.py'
recipes = dict(finetune='semi_byol')
