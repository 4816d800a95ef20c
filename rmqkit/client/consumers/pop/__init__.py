"""Consumers in pop mode: brokers choose the messages, and each message is acked for itself.

consumer     the consumer of one group: its queues, its pops, and the outcomes of its listener
assignment   which queues it pops (400)
request      one pop: the request, and its response as a value (200050)
messages     a popped message and the steps of its life
receipts     acks and changes of the invisible time, repeated until a broker answers
"""
