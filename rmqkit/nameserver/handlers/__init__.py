"""The request codes of a name server, by area."""

from rmqkit.nameserver.handlers import brokers, config, kv, routes, topics
from rmqkit.runtime.calls import Handlers

HANDLERS = Handlers(brokers.rows, routes.rows, topics.rows, kv.rows, config.rows)
