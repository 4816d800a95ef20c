"""The controller: decides which broker of a set is master, and knows which members are in sync.

node            Controller, the node that joins the parts
sets/           the table of broker sets, decisions about them, and the election of a master
decision_queue  makes one decision at a time, and answers it once it is committed
heartbeats      which brokers are alive
master_watch    replaces masters that died
role_notices    tells brokers about elections
contract        the port between the controller and its log
single_log      the log for one controller
raft/           the log for a group of controllers
group           the controllers of a group, the name of their log, and links to the others
access          which callers may send requests
metrics         Prometheus metrics
view            what handlers use of a controller
handlers/       the request codes, by area
"""
