"""`python -m ebmcal`, and so `torchrun -m ebmcal`."""

from ebmcal.cli import main

if __name__ == "__main__":
    main()
