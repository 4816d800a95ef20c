"""What a node tells Prometheus: the metrics as values, their text, and the HTTP endpoint that gives it out.

    families.py   metrics as values, and the text of them (`prometheus-client`)
    http.py       the server's side of HTTP without a socket (`h11`)
    endpoint.py   GET /metrics: a scrape is written a piece a turn
    latency.py    how long requests take, by code

The nodes' own modules (`rmqkit.broker.metrics`, `rmqkit.nameserver.metrics`) say what there is to tell. All of this is
imported by nodes whose `metricsExporterType` is PROM, and by no others.
"""
