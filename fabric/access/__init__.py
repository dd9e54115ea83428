"""Keys and rights on disk: the key pair of the hub, the access file, the enrolled file, and the book over them."""
