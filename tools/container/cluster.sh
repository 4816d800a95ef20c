#!/bin/sh
# The first process of the image: starts a cluster, waits for SIGTERM, stops the cluster.
#
#     cluster.sh [OPTIONS of `rmqkit cluster up`]
#
# The nodes listen on every address of the container: `docker run -p` decides who reaches them.
# `--preset secure` turns access control and TLS on.
#
# RMQKIT_ADVERTISE is the address that the name server gives to clients. The default, 127.0.0.1, works
# for clients on the container's host if each port is published under the same number.
set -eu

stop() {
    rmqkit cluster down
    exit 0
}

rmqkit cluster up --bind 0.0.0.0 --insecure --advertise "${RMQKIT_ADVERTISE:-127.0.0.1}" "$@"
trap stop TERM INT
# Wait in a loop instead of exec: the shell must also reap the nodes that a drill kills, since their
# parent, the command above, has ended.
while :; do
    sleep 3600 &
    wait $! || true
done
