# iNaturalist 2018, by every protocol of tools/evaluate.py; linear by MSBReg's recipe.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/inaturalist18.py']
recipes = dict(linear='linear_inat_84e')
