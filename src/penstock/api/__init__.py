"""The REST API: every reading a GET, every operation a preview and an apply, made of the declarations."""
