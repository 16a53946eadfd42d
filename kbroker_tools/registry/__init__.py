"""Values whose schemas are in a schema registry: the client of the registry, and decoders to Arrow columns.

`settings` and `client` ask the registry, and `framing` finds the id of a schema in a value or its headers. `decoding`
makes the decoder of a topic's values. There is one module for each format: `avro`, `protobuf` and `json_values`.
"""
