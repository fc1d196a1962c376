# BYOL with the uniformity loss (Table 3). The supplement does not state its weight; we chose 1.
_base_ = 'byol_r18_in100_320e.py'
model = dict(head=dict(terms=[dict(type='UniformityTerm', weight=1.0)]))
assumptions = dict(
    uniform_weight='the uniformity loss has weight 1; the supplement states no weight'
)
