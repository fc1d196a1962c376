# BYOL's Sec. 5: no target network. For each batch, the predictor is the linear map with the least squared error.
_base_ = 'predictor_beta0_r50_300e.py'
custom_imports = dict(imports='projects.papers.optimal_linear')
model = dict(predictor=None, head=dict(_delete_=True, type='OptimalLinearHead'))
