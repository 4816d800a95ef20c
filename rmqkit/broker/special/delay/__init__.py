"""Delay levels: messages that wait in SCHEDULE_TOPIC_XXXX and are put into their own topic when their time has come."""
