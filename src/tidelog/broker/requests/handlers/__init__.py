"""One module per API; the table in broker/requests/dispatch.py names them and loads each on first use."""
