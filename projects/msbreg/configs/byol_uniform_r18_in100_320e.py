# BYOL with the uniformity loss (Tab. 3). The supplement prints no weight; 1 is ours.
_base_ = 'byol_r18_in100_320e.py'
model = dict(head=dict(terms=[dict(type='UniformityTerm', weight=1.0)]))
assumptions = dict(
    uniform_weight='the uniformity loss has weight 1; the supplement states no weight'
)
