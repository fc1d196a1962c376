# DINO on the ResNet-50 of the other methods, with two crops of 224 and six of 96 pixels. The release has eight of 96
# pixels. The areas of the crops are those of its command for a ResNet-50.
__method__ = 'dino_multicrop'
_base_ = ['dino_r50_300e.py', '../_base_/views/methods.py']
model = dict(key_views=[0, 1])
train_dataloader = dict(dataset=dict(views={{_base_.dino_r50}}))
