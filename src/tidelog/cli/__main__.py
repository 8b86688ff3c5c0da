"""`python -m tidelog.cli` is the `tidelog` command."""

from tidelog.cli.main import main

main()
