"""`rmqkit explain`: the meaning of codes, remarks and the state of a node."""
