"""Schemas of a registry, for whoever reads or writes records with them: the command line, the console,
pipelines.

`registry_client` asks a registry, `registered` keeps what it answered, `framing` is how a record names its
schema. `decoding` and `encoding` turn bytes into JSON values and back, by Avro, JSON Schema or Protobuf
(`avro_reader`, `avro_writer`, `json_values`, `protobuf_schema`, `protobuf_reader`, `protobuf_writer`).
"""
