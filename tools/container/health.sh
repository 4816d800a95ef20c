#!/bin/sh
# Health check of the image. A cluster is healthy if a name server returns its topics. A single node is
# healthy if its port accepts connections: RMQKIT_PORT, 9876 by default.
set -eu
for cluster in "$RMQKIT_HOME"/*/state.json; do
    if [ -e "$cluster" ]; then
        exec rmqkit topic list --json >/dev/null
    fi
done
exec python -c 'import os, socket; socket.create_connection(("127.0.0.1", int(os.environ.get("RMQKIT_PORT", "9876"))), 3)'
