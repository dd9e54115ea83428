"""`fabric top`: a live view of a hub. The model and the view read no clock and no socket; the loop has both."""
