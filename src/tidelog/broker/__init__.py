"""One node without sockets: dispatch, handlers, partitions, parking."""
