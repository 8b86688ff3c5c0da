"""Record batches (magic v2): header layout, CRC, validation, iteration, building, compression."""
