"""Inference programs, installed as `skipjax.infer`: they parse flags, build, and call the library."""
