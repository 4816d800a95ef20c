"""Delay levels: messages wait in SCHEDULE_TOPIC_XXXX, and are put into their own topic when due.

delivery  the duty: reads the queue of each level and puts due messages
level     state of one delay level
progress  how far each level is delivered (delayOffset.json)
rewrite   turns a sent message into a waiting one, and that into a delivered one
"""
