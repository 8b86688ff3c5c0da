"""The `tidelog` command: one thin module per command group."""
