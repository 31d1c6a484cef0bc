"""The shipped test kit: our own tests run on it, and tests of other lock managers can."""
