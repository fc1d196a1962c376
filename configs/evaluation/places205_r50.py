# Places205, by every protocol of tools/evaluate.py; linear by MSBReg's recipe.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/places205.py']
recipes = dict(linear='linear_places_28e')
