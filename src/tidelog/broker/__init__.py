"""One node without sockets. `broker` puts it together from the parts in the subpackages."""
