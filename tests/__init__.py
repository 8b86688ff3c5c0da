"""The tests, one folder for each kind: CONTRIBUTING.md says what each does."""
