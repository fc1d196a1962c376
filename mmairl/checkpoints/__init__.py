"""The weights of a backbone, from whatever file and by whatever names, and out to any of them."""
