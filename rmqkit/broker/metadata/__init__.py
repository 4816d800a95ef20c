"""Metadata: the tables that are not in the log (topics, groups, consumer offsets, progress of special duties).

metadata_copy    a slave's side: asks its master again and again what has changed
metadata_server  the master's side: answers, and holds a question while nothing has changed
table_pages      fetches whole tables
copied_tables    the tables
request_modes    the table of request modes, which nothing here acts by
"""
