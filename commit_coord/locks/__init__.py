"""Lock managers: clients of the services that grant locks."""
