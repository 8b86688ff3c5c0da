"""One module per scenario, named like it with underscores, with a `SCENARIO` (see `tidelog.lab.scenario`)."""
