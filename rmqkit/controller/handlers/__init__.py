"""The request codes of a controller, by area."""

from rmqkit.controller.handlers import admin, brokers, config, peers
from rmqkit.runtime.calls import Handlers

HANDLERS = Handlers(brokers.rows, admin.rows, config.rows, peers.rows)
