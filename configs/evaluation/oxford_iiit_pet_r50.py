# Oxford-IIIT Pet, by every protocol of tools/evaluate.py.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/oxford_iiit_pet.py']
