#!/bin/sh
# Health check of the image. A cluster is healthy while a name server answers with its topics; a single node is healthy
# while its port accepts connections: RMQKIT_PORT, 9876 when that is not set.
set -eu
for cluster in "$RMQKIT_HOME"/*/state.json; do
    if [ -e "$cluster" ]; then
        exec rmqkit topic list --json >/dev/null
    fi
done
exec python -c 'import os, socket; socket.create_connection(("127.0.0.1", int(os.environ.get("RMQKIT_PORT", "9876"))), 3)'
