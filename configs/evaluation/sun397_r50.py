# SUN397, by every protocol of tools/evaluate.py.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/sun397.py']
