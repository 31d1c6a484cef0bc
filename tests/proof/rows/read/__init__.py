"""Tables as readers show them that share no code with us, and what these readers cannot read."""
