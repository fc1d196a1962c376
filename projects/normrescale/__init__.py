"""The benefit of NormRescale in tuning trials."""
