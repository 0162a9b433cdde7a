"""Encoders with an energy: loading pretrained weights, padding-free passes, energies, prediction. Needs torch."""
