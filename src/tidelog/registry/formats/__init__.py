"""Avro, JSON Schema and Protobuf: reading a schema, its canonical text, what it cannot read of an older
one.

A module per format has a `parse(text, references)` that returns a `Parsed`; `parsing.parse` chooses.
`references` are the schemas that it names, those that they name before them.
"""
