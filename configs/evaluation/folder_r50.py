# Your own images in class folders, by every protocol of tools/evaluate.py.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/folder.py']
