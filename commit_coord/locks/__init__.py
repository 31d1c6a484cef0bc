"""Lock managers: the services that say who may work on what."""
