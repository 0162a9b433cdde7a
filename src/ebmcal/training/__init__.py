"""Training: one recipe, one config, one collator, one trainer."""
