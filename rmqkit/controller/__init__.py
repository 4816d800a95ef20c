"""The controller: decides which broker of a set is master, and knows who has every message.

node            Controller, the node that joins the parts
table           the broker sets: members, masters, epochs, SyncStateSets
events          the changes of the table, as the log stores them
decisions       what is answered to a request, and the events that make it true: pure functions
election        which member becomes master
decision_queue  makes one decision at a time, and answers it once it is committed
heartbeats      who is alive
master_watch    replaces masters that died
role_notices    tells brokers about elections
contract        the port between the controller and its log
single_log      the log for one controller
raft/           the log for a group of controllers
group           the controllers of a group, the name of their log, and links to the others
access          who may send requests
view            what handlers use of a controller
handlers/       the request codes, by area
"""
