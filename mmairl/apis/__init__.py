"""Pre-training on people's own images: settings for their number, a plan for other hardware."""
