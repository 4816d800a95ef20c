"""TLS for every driver: contexts made of certificate files, and a transport without a socket.

- `transport`: one side of a TLS connection. Bytes of the peer go in, plain bytes come out.
- `contexts`: builds the `ssl` contexts of a server and of a client from their settings.
- `client_choice`: resolves the `tls` argument of clients and the variable RMQKIT_TLS.
- `node_tls`: the TLS of one node: which listeners and dials use it, its limits, and the reload of
  changed certificates.

The shell (`rmqkit.shell.tls_stream`) and the simulator (`rmqkit.sim.tls_ends`) drive the transport.
A process without TLS does not import this package, because `ssl` takes 15 ms to load.
"""
