"""Texts that are not data: where they come from, how they are written, kept and read back."""
