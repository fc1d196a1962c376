# All of ImageNet's labels by BYOL's semi-supervised protocol (its App. C.1): the whole network, rate and length selected.
_base_ = 'imagenet_r50.py'
recipes = dict(finetune='semi_byol')
