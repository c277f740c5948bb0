"""Bridges to what people use already; each needs the extra of its name."""
