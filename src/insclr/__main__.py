"""`python -m insclr`: the same as the command `insclr`."""

from insclr.cli import main

main()
