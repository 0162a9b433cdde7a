"""Encoders as they are run: loading, tokens, passes without padding, energies, scores. Torch from here on."""
