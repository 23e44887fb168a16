"""The raw level: declarations, extension, virtual devices and ABI of one build, kept in <build>/python."""
