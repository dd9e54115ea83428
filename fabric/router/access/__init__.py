"""Rights: principals, their roles, and which patterns a pattern includes or meets."""
