"""`python -m ebmcal`, and so `torchrun -m ebmcal`."""

from ebmcal.cli import main

main()
