"""The coordination port (versioned keys, compare-and-set, watch) and its adapters."""
