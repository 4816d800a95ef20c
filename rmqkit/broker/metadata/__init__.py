"""Metadata: replicates the tables outside the log.

The tables are topics, subscription groups, consumer offsets, and the progress of special duties.

metadata_copy    the slave's side: keeps asking its master for changes
metadata_server  the master's side: answers, and holds a request while nothing has changed
copy_round       the source of the copy, and one round of requests to it
progress_copy    the slave's copy of the progress of special duties
table_pages      fetches whole tables
copied_tables    the set of tables
request_modes    the table of request modes
"""
