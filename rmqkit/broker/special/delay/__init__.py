"""Delay levels: messages that wait in SCHEDULE_TOPIC_XXXX and are put into their own topic when their time has come."""

from rmqkit.broker.special.delay.delivery import Schedule
from rmqkit.broker.special.delay.rewrite import due, postponed

__all__ = ["Schedule", "due", "postponed"]
