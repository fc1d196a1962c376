# MoCo v2+ with CPU speed settings: the same method and schedule.
_base_ = ['../mocov2plus_r50_200e.py', '../_base_/fast_cpu.py']
