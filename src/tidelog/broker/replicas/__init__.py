"""The replicas on this broker: what one is, which there are, appending to them and reading them."""
