"""`python -m minibatcher`."""

from minibatcher.cli import main

main()
