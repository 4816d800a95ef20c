"""Puts that wait for the disk and for copies, and their answers.

puts        parks the puts of a turn, and answers them when disk and copies are ready
send_runs   plain sends of one connection that are parked as one item
answers     the answers to sends, by templates
"""
