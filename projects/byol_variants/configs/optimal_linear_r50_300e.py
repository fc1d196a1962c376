# Sec. 5: no target network, and in place of the predictor the linear map that fits the batch best.
_base_ = 'predictor_beta0_r50_300e.py'
custom_imports = dict(imports=['projects.byol_variants.optimal_linear'], allow_failed_imports=False)
model = dict(predictor=None, head=dict(_delete_=True, type='OptimalLinearHead'))
