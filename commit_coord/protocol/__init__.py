"""Decisions, and nothing else: no time, no random numbers, no I/O, no threads, no drivers.

Whatever a decision depends on is an argument; whatever it decides is the return value. So each module
here is also the documentation of its rule, and a simulator can run it in any order.
"""
