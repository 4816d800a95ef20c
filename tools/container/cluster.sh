#!/bin/sh
# The first process of the image: starts a cluster, waits for SIGTERM, stops the cluster.
#
#     cluster.sh [OPTIONS of `rmqkit cluster up`]
#
# RMQKIT_ADVERTISE is the address that clients are told; 127.0.0.1 serves clients on the host that runs the container
# with the ports published one to one.
set -eu

stop() {
    rmqkit cluster down
    exit 0
}

rmqkit cluster up --bind 0.0.0.0 --advertise "${RMQKIT_ADVERTISE:-127.0.0.1}" "$@"
trap stop TERM INT
# The shell also reaps the nodes that a drill kills: their parent, the command above, has ended.
while :; do
    sleep 3600 &
    wait $! || true
done
