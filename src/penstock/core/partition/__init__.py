"""One partition's replica as a sans-IO core: roles, the high watermark, following."""
