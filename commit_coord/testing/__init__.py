"""The shipped test kit: what our own tests run on, and anybody's tests of another lock manager can."""
