"""The REST proxy: HTTP + JSON. Requests and answers follow Confluent's REST proxy, v2 and v3, where it has them."""
