"""Names of choices whose tables need torch, for checking a config without it. A test keeps them equal to the tables."""

METHOD_NAMES = ("baseline", "poscal", "poscal-kl", "scalar", "hidden", "sharp-hidden")
MODE_NAMES = ("infill", "continue", "gaps", "plain", "half")
