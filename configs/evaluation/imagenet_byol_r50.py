# All of ImageNet's labels by BYOL's protocol for few labels (its App. C.1): the whole network is fine-tuned, and the
# learning rate and the number of epochs are selected.
_base_ = 'imagenet_r50.py'
recipes = dict(finetune='semi_byol')
