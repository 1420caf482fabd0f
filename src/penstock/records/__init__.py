"""Record batches: headers, building, decoding, compression, control records."""
