"""Metrics of a node for Prometheus: as values, as text, and the HTTP endpoint that serves them.

    families.py   metrics as values, and their text (`prometheus-client`)
    http.py       the server side of HTTP, without a socket (`h11`)
    endpoint.py   GET /metrics: a scrape is produced in pieces, a few per turn
    latency.py    response times of requests, by code
    histogram.py  counts of values by bucket
    node_families.py  the metrics that name server and controller share

The metrics themselves are defined in `rmqkit.broker.metrics` and `rmqkit.nameserver.metrics`. Only
nodes whose `metricsExporterType` is PROM import any of this.
"""
