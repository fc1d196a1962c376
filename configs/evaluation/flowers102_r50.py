# Flowers-102, by every protocol of tools/evaluate.py.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/flowers102.py']
