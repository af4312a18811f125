"""Measurements of pgbroker beside the raw database and its peers. `python3 testproject bench --list` names them."""
