"""REQ and REP: requests, and the services that answer them."""
