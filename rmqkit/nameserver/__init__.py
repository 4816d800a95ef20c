"""The name server: knows which brokers are alive, and which topic is on which broker.

node          NameServer, the node that joins the parts
route_table   the tables of brokers and topics
registration  applies a broker's registration to the tables
liveness      removes brokers whose connection ended, or that were silent
notices       tells the members of a group that its smallest id has changed
answers       builds routes, cluster info and topic lists from the tables
kv            small configuration texts, stored in a file
names         the limits of the tables
metrics       Prometheus metrics
access        access control, with the users that brokers send
view          what handlers and metrics use of a name server
handlers/     the request codes, by area
"""
