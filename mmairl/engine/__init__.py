"""How a run is started, wrapped, saved and trusted."""
