# Step 3 from MoCo v2 to BYOL (Fig. 2 of Huang et al. 2022, fourth point): the teacher's momentum ascends from 0.99 to 1
# along a cosine.
__method__ = 'mocov2_syncbn_predictor_momentum'
_base_ = 'mocov2_syncbn_predictor_r50_200e.py'
default_hooks = dict(momentum=dict(base=0.99, schedule='cosine'))
