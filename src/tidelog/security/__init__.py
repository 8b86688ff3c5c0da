"""Who is at the other end: TLS, SASL exchanges, tokens, principals. Bytes in, bytes out; no sockets."""
