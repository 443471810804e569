"""How providers stand, over HTTP: the route, and who may read it."""
