"""The tables of a broker: topics, subscription groups, consumer offsets, online clients.

topics      topic configuration by name; topics.json
groups      subscription groups; subscriptionGroup.json
offsets     consumer offsets; consumerOffset.json
clients     producers and consumers by group, from their heartbeats
attributes  the attributes that topics and groups may have
changes     which keys of a table have changed, so that slaves copy only those
"""
