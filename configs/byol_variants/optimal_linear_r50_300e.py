# Sec. 5: no target network; the predictor is the linear map that fits the batch best.
_base_ = 'predictor_beta0_r50_300e.py'
model = dict(predictor=None, head=dict(_delete_=True, type='OptimalLinearHead'))
