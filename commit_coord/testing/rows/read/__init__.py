"""Tables as their files say, and as readers show them."""
