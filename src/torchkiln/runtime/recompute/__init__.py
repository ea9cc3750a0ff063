"""Computing intermediates again in backward instead of keeping them."""
