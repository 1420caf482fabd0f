"""HTTP + JSON. Shapes follow Confluent's REST proxy, v2 and v3, where those exist."""
